// Model kinds. A kind is a config struct, a module struct and a line in the table of
// nn/models/kinds.cc (or, in a program of your own, a call of add_model_kind). The trainer knows a
// model by the interface here alone.
//
//   struct MineConfig {
//     LATHE_FIELD(int64_t, n_hidden, 128, "units of the hidden layer", between(1, 100000).fixed())
//   };
//   struct Mine {
//     Mine(const MineConfig& config, const ModelSizes& sizes);   // or of the config alone
//     Variable operator()(const at::Tensor& inputs) const;       // or of a Variable
//     void visit(Visit& v);
//   };
//   add_model_kind(model_kind<Mine, MineConfig>("mine", "what it is"));
//
// A module may have these members beside that:
//   features(inputs), head_weight()
//       its output is features W^T: a loss then takes both together, without logits
//   double flops_per_unit() const
//       training FLOPs of a token (language) or sample, for MFU; else 6 N (4 N for frozen
//       parameters), N without embeddings
//   config.block_size, config.vocab_size
//       it models sequences of tokens, of at most so many
//   config.init
//       how its weights start (nn/init.h); else kaiming
//   static std::optional<ConfigFault> check(const Config&)
//       what must hold between keys
//   static std::optional<Config> scale_down(const Config&)
//       the next smaller version, which `lathe plan` measures in place of one that is too large
//       for that, as halve() helps to make; nullopt: there is none. Else any whole number is tried
//       at half of it and at its divisors
//   static constexpr bool caches_keys = true
//       its attention uses a KeyValueCache (nn/layers/cache.h), so that text is generated without
//       computing known positions again
//   static constexpr bool separates_documents = true
//       it reads SeparateDocuments (nn/layers/documents.h)
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "core/config.h"
#include "core/dtype.h"
#include "core/error.h"
#include "nn/module.h"
#include "nn/module_call.h"

namespace lathe {

/// What a model's shape takes from the data: of one input, and how many numbers or classes it
/// predicts. Nothing for token data, whose vocabulary is a key of the config.
struct ModelSizes {
  std::vector<int64_t> input;
  int64_t outputs = 0;
};

/// Keys that don't go together, and the sentence that says so.
struct ConfigFault {
  std::vector<std::string> keys;  ///< without their section
  std::string what;
};

/// A model of any kind.
class Model {
 public:
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// inputs as the data gives them -> logits [B, T, V] or [B, classes], or predictions [B,
  /// outputs].
  virtual Variable operator()(const at::Tensor& inputs) const = 0;
  /// Whether the output is features W^T.
  virtual bool has_head() const = 0;
  /// What the head is applied to, [..., C]. An error where has_head() is false.
  virtual Variable features(const at::Tensor& inputs) const = 0;
  /// The head's weight [V, C]. An error where has_head() is false.
  virtual const Variable& head_weight() const = 0;
  /// Whether a forward under a KeyValueCache::Use takes new tokens alone.
  virtual bool caches_keys() const = 0;
  virtual void visit(Visit& v) = 0;
  /// Training FLOPs of a token or sample by a formula of the field.
  virtual double flops_per_unit() const = 0;
  /// A model with the same shapes, whose parameters are handles to the same tensors.
  virtual std::unique_ptr<Model> clone() const = 0;

 protected:
  Model() = default;
};

/// Summed cross-entropy of features W^T over targets that are not -100, divided by `divisor` (0:
/// their number), without keeping logits.
template <class Headed>
Variable head_loss(const Headed& model, const at::Tensor& inputs, const at::Tensor& targets,
                   double divisor = 0) {
  const Variable x = model.features(inputs);
  return linear_cross_entropy(reshape(x, {-1, x.sizes().back()}), model.head_weight(),
                              targets.reshape({-1}), divisor);
}

/// 6 FLOPs a token or sample for each trained parameter, 4 for each frozen one; embeddings that are
/// looked up and not multiplied count for nothing. Kaplan et al. 2020.
double matmul_flops(const std::vector<NamedParameter>& parameters);

/// A row of the table of model kinds.
struct ModelKind {
  std::string name, doc;
  AnyConfig config;  ///< with its defaults
  /// On the CPU in float32, parameters all zero until they are initialized; shapes alone under
  /// MetaInit.
  std::function<std::unique_ptr<Model>(const AnyConfig&, const ModelSizes&)> make;
  /// What is wrong between the keys of a config.
  std::function<std::optional<ConfigFault>(const AnyConfig&)> check;
  bool separates_documents = false;  ///< whether its forwards go by SeparateDocuments
  /// The next smaller version of a config; empty where the module does not say.
  std::function<std::optional<AnyConfig>(const AnyConfig&)> scale_down{};

  bool models_tokens() const {
    return config.find<int64_t>("block_size") && config.find<int64_t>("vocab_size");
  }
};

namespace detail {

template <class Module>
class ModelOf final : public Model {
 public:
  explicit ModelOf(Module module) : module_(std::move(module)) { place(module_); }
  Variable operator()(const at::Tensor& inputs) const override {
    const ModuleCall call(module_);
    if constexpr (std::invocable<const Module&, const at::Tensor&>) {
      return module_(inputs);
    } else {
      return module_(Variable(inputs));
    }
  }
  bool has_head() const override { return headed; }
  Variable features(const at::Tensor& inputs) const override {
    if constexpr (headed) {
      const ModuleCall call(module_);
      return module_.features(inputs);
    } else {
      fail(Exit::internal, "this model has no head");
    }
  }
  const Variable& head_weight() const override {
    if constexpr (headed) {
      return module_.head_weight();
    } else {
      fail(Exit::internal, "this model has no head");
    }
  }
  bool caches_keys() const override {
    if constexpr (requires { Module::caches_keys; }) {
      return Module::caches_keys;
    } else {
      return false;
    }
  }
  void visit(Visit& v) override { module_.visit(v); }
  double flops_per_unit() const override {
    if constexpr (requires { module_.flops_per_unit(); }) {
      return module_.flops_per_unit();
    } else {
      return matmul_flops(parameters(module_));
    }
  }
  std::unique_ptr<Model> clone() const override { return std::make_unique<ModelOf>(module_); }

 private:
  static constexpr bool headed = requires(const Module& m, const at::Tensor& x) {
    m.features(x);
    m.head_weight();
  };
  Module module_;
};

}  // namespace detail

/// The line of a kind.
template <class Module, class Config>
ModelKind model_kind(const char* name, const char* doc) {
  constexpr bool sized = std::constructible_from<Module, const Config&, const ModelSizes&>;

  static_assert(sized || std::constructible_from<Module, const Config&>,
                "a model is made from its config, or from its config and the data's sizes");
  static_assert(std::invocable<const Module&, const at::Tensor&> ||
                    std::invocable<const Module&, const Variable&>,
                "a model is called with a batch's inputs");
  static_assert(
      requires(Module& m, Visit& v) { m.visit(v); },
      "a model names its parameters in visit(Visit&)");

  ModelKind kind{name, doc, AnyConfig::of<Config>(), {}, {}};

  // Optional members of the module become functions on AnyConfig here, so that the rest of Lathe
  // never sees its types.
  if constexpr (requires(const Config& c) { Module::scale_down(c); }) {
    kind.scale_down = [](const AnyConfig& any) -> std::optional<AnyConfig> {
      const std::optional<Config> smaller = Module::scale_down(any.as<Config>());
      if (!smaller) return std::nullopt;
      // Copied first: AnyConfig holds more than the struct, such as which schema it has.
      AnyConfig scaled = any;
      *static_cast<Config*>(scaled.data()) = *smaller;
      return scaled;
    };
  }

  if constexpr (requires { Module::separates_documents; })
    kind.separates_documents = Module::separates_documents;

  kind.make = [](const AnyConfig& any, const ModelSizes& sizes) -> std::unique_ptr<Model> {
    const Config& config = any.as<Config>();
    if constexpr (sized) {
      return std::make_unique<detail::ModelOf<Module>>(Module(config, sizes));
    } else {
      return std::make_unique<detail::ModelOf<Module>>(Module(config));
    }
  };

  kind.check = [](const AnyConfig& any) -> std::optional<ConfigFault> {
    if constexpr (requires(const Config& c) { Module::check(c); }) {
      return Module::check(any.as<Config>());
    } else {
      return std::nullopt;
    }
  };

  return kind;
}

/// All kinds: Lathe's, then those that were added.
const std::vector<ModelKind>& model_kinds();
/// Adds a kind, before the command line is run. Exit::internal where its name is taken.
void add_model_kind(ModelKind kind);
/// The kind of that name, or null.
const ModelKind* find_model_kind(const std::string& name);

/// Smaller versions of a kind's config, for each way to make it smaller those to try one after
/// another; all pass the kind's check. The one of scale_down where the kind has that; else guesses,
/// of which some may be no model or not smaller: for each whole number, the largest first, versions
/// with half of it and with its divisors.
std::vector<std::vector<AnyConfig>> scaled_versions(const ModelKind& kind, const AnyConfig& config);
/// Halves a size, but not below `least`; false, and it stays, where it is no larger than that.
bool halve(int64_t& size, int64_t least);
/// Half of a size, 1 at least, as a multiple of 16 or as much of that as the size is a multiple of.
int64_t half_width(int64_t size);

/// A model of a kind with its initial values, which depend on the seed and each parameter's path
/// alone.
std::unique_ptr<Model> make_model(const ModelKind& kind, const AnyConfig& config,
                                  const ModelSizes& sizes, uint64_t seed);
/// Fills `parameters` with their initial values as the model's config says.
void initialize(const std::vector<NamedParameter>& parameters, const AnyConfig& config,
                uint64_t seed);

}  // namespace lathe
