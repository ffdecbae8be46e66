// Model kinds. A kind is a config struct, a module struct and a line in the table of
// nn/models/kinds.cc (or, in your own program, a call of add_model_kind). The trainer uses a model
// only through the interface in this file.
//
//   struct MineConfig {
//     LATHE_FIELD(int64_t, n_hidden, 128, "units of the hidden layer", between(1, 100000).fixed())
//   };
//   struct Mine {
//     Mine(const MineConfig& config, const ModelSizes& sizes);   // or (const MineConfig& config)
//     Variable operator()(const at::Tensor& inputs) const;       // or (const Variable& inputs)
//     void visit(Visit& v);
//   };
//   add_model_kind(model_kind<Mine, MineConfig>("mine", "what it is"));
// A module may also have these members:
//   features(inputs), head_weight()
//       the output is features W^T, so a loss can use both factors without storing complete logits
//   double logit_softcap() const
//       if it returns c > 0, the output is c tanh(features W^T / c); default: 0, no cap
//   double flops_per_unit() const
//       training FLOPs of a token (language) or sample, for MFU; default: 6 for each trained and 4
//       for each frozen parameter, without embeddings
//   config.block_size, config.vocab_size
//       the model takes sequences of at most block_size tokens, each below vocab_size
//   config.init
//       the initial values of the module's weights (nn/init.h); default: kaiming
//   static std::optional<ConfigFault> check(const Config&)
//       checks conditions between keys
//   static std::optional<Config> scale_down(const Config&)
//       returns the next smaller version, for example by halve(), or nullopt if there is none;
//       `lathe plan` measures that version instead of a model that is too large to measure.
//       Default: each integer key is tried at half its value and at the divisors of its value
//   static std::vector<LayerCut> layer_cuts(const Config&)
//       how dist.tensor cuts the layers; without this member, dist.tensor must be 1
//   static constexpr bool caches_keys = true
//       the module's attention uses a KeyValueCache (nn/layers/cache.h), so that text is generated
//       without computing known positions again
//   static constexpr bool separates_documents = true
//       the module supports rows of several documents: SeparateDocuments (nn/layers/documents.h)
//   static constexpr bool divides_positions = true
//       only the module's attention mixes positions, in CausalSelfAttention or
//       GroupedQueryAttention, and the module takes positions from token_positions()
//       (nn/layers/documents.h). dist.context may then be above 1. If layer_cuts() cuts the
//       attention, dist.sequence_parallel may be true
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

/// The sizes that a model takes from the data: the shape of one input, and the number of classes or
/// values to predict. Both are unset for token data, where the vocabulary is a key of the config.
struct ModelSizes {
  std::vector<int64_t> input;
  int64_t outputs = 0;
};

/// Config keys whose values contradict each other, and the error message.
struct ConfigFault {
  std::vector<std::string> keys;  ///< names of the keys, without the name of their section
  std::string what;
};

/// How the layers whose path matches a pattern, such as "blocks.*.mlp.up", are cut among tensor
/// ranks (dist/tensor_ranks.h). A layer that is cut along its outputs (dim 0 of its weight) must
/// feed layers that are cut along their inputs (dim 1); an Embedding and the head are cut along the
/// vocabulary (dim 0).
struct LayerCut {
  std::string layers;
  int64_t dim = 0;
  int64_t sections = 1;  ///< number of equal sections of the outputs, each of which is cut; 3 for
                         ///< packed queries, keys and values
  /// Number of units, which the number of ranks must divide. 0: parts may differ by a row.
  int64_t units = 0;
  std::string unit{};  ///< name of the units, with the key: "heads (model.n_head)"
};

/// A model of any kind.
class Model {
 public:
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Maps a batch's inputs to logits [B, T, V] or [B, classes], or predictions [B, outputs].
  virtual Variable operator()(const at::Tensor& inputs) const = 0;
  /// Returns whether the output is features W^T, capped by logit_softcap() if that is not 0.
  virtual bool has_head() const = 0;
  /// Returns the input of the head, [..., C]. Throws if has_head() is false.
  virtual Variable features(const at::Tensor& inputs) const = 0;
  /// Returns the head's weight [V, C]. Throws if has_head() is false.
  virtual const Variable& head_weight() const = 0;
  /// Returns the cap of the head's logits, or 0 if there is none.
  virtual double logit_softcap() const { return 0; }
  /// Returns whether a forward pass under a KeyValueCache::Use takes only new tokens.
  virtual bool caches_keys() const = 0;
  virtual void visit(Visit& v) = 0;
  /// Returns the training FLOPs of a token or sample, for MFU.
  virtual double flops_per_unit() const = 0;
  /// Returns a model whose parameters are handles to the same tensors.
  virtual std::unique_ptr<Model> clone() const = 0;

 protected:
  Model() = default;
};

/// Returns x W^T [..., V] of features x [..., C] and a head's weight; with a softcap c above 0, c
/// tanh(x W^T / c), which is computed in float32 or wider.
Variable head_logits(const Variable& x, const Variable& weight, double softcap);
/// Returns how many rows of logits head_cross_entropy() computes at a time: the same number on all
/// tensor ranks, whose parts of the vocabulary may differ by one row.
int64_t logit_rows_per_chunk(const Variable& weight);
/// Returns the summed cross-entropy of head_logits() of x [N, C] over the targets [N] that are not
/// -100, divided by `divisor` (0 stands for the number of these targets). Does not keep complete
/// logits, with one exception: a `divisor` of 0 with a softcap or with tensor ranks that have parts
/// of the vocabulary. With a softcap or such ranks and a `divisor` that is not 0, computes the
/// logits of some rows at a time, and computes them again in the backward pass.
Variable head_cross_entropy(const Variable& x, const Variable& weight, double softcap,
                            const at::Tensor& targets, double divisor);

/// Returns the cap of a model's logits, or 0 if there is none.
template <class Headed>
double logit_softcap_of(const Headed& model) {
  if constexpr (requires { model.logit_softcap(); }) {
    return model.logit_softcap();
  } else {
    return 0;
  }
}
/// Returns the summed cross-entropy of a model's logits over targets that are not -100, divided by
/// `divisor` (0 stands for the number of these targets). head_cross_entropy() states when it keeps
/// complete logits.
template <class Headed>
Variable head_loss(const Headed& model, const at::Tensor& inputs, const at::Tensor& targets,
                   double divisor = 0) {
  const Variable x = model.features(inputs);
  const Variable rows = reshape(x, {-1, x.sizes().back()});
  return head_cross_entropy(rows, model.head_weight(), logit_softcap_of(model),
                            targets.reshape({-1}), divisor);
}

/// Returns 6 FLOPs per token or sample for each trained parameter, and 4 for each frozen parameter.
/// Embeddings that are only looked up do not count. Kaplan et al. 2020.
double matmul_flops(const std::vector<NamedParameter>& parameters);

/// A row of the table of model kinds.
struct ModelKind {
  std::string name, doc;
  AnyConfig config;  ///< the kind's config with default values
  /// Creates the model on the CPU in float32. Parameters are zero until they are initialized; under
  /// MetaInit they are on the meta device. This function must not read or write parameters: under
  /// WithoutMemory, which runs of several processes use, parameters have no memory yet.
  std::function<std::unique_ptr<Model>(const AnyConfig&, const ModelSizes&)> make;
  /// Returns the first conflict between keys of a config, if any.
  std::function<std::optional<ConfigFault>(const AnyConfig&)> check;
  bool separates_documents = false;  ///< whether the kind supports SeparateDocuments
  bool divides_positions = false;    ///< whether the kind supports DividePositions
  /// Returns the next smaller version of a config; empty if the module has no scale_down().
  std::function<std::optional<AnyConfig>(const AnyConfig&)> scale_down{};
  /// Returns how tensor ranks cut the layers; empty if the module has no layer_cuts().
  std::function<std::vector<LayerCut>(const AnyConfig&)> layer_cuts{};

  /// Returns whether the model takes sequences of tokens: its config has block_size and vocab_size.
  bool models_tokens() const {
    return config.find<int64_t>("block_size") && config.find<int64_t>("vocab_size");
  }
};

namespace detail {

template <class Module>
class ModelOf final : public Model {
 public:
  explicit ModelOf(Module module) : module_(std::move(module)) { assign_random_streams(module_); }
  Variable operator()(const at::Tensor& inputs) const override {
    const ModuleCall call(module_);
    return module_(inputs);
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
  double logit_softcap() const override { return logit_softcap_of(module_); }
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

/// Returns the kind of a module and its config, for add_model_kind(). `doc` describes the kind in a
/// few words.
template <class Module, class Config>
ModelKind model_kind(const char* name, const char* doc) {
  constexpr bool sized = std::constructible_from<Module, const Config&, const ModelSizes&>;

  static_assert(
      sized || std::constructible_from<Module, const Config&>,
      "a model needs a constructor that takes its config, or its config and the data's sizes");
  static_assert(std::invocable<const Module&, const at::Tensor&>,
                "a model needs an operator() that takes the inputs of a batch");
  static_assert(
      requires(Module& m, Visit& v) { m.visit(v); },
      "a model needs visit(Visit&), which names its parameters");

  ModelKind kind{
      .name = name, .doc = doc, .config = AnyConfig::of<Config>(), .make = {}, .check = {}};

  // Optional members of the module become functions on AnyConfig here, so that no other part of
  // Lathe sees the module's types.
  if constexpr (requires(const Config& c) { Module::scale_down(c); }) {
    kind.scale_down = [](const AnyConfig& any) -> std::optional<AnyConfig> {
      const std::optional<Config> smaller = Module::scale_down(any.as<Config>());
      if (!smaller) return std::nullopt;
      // Copy `any` first, since an AnyConfig also has the schema and type of its struct.
      AnyConfig scaled = any;
      *static_cast<Config*>(scaled.data()) = *smaller;
      return scaled;
    };
  }

  if constexpr (requires(const Config& c) { Module::layer_cuts(c); }) {
    kind.layer_cuts = [](const AnyConfig& any) { return Module::layer_cuts(any.as<Config>()); };
  }

  if constexpr (requires { Module::separates_documents; })
    kind.separates_documents = Module::separates_documents;
  if constexpr (requires { Module::divides_positions; })
    kind.divides_positions = Module::divides_positions;

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

/// Returns all kinds: Lathe's kinds, and then the kinds that were added.
const std::vector<ModelKind>& model_kinds();
/// Adds a kind. Call this function before run_cli(). Throws Exit::internal if the name is taken, or
/// if the config has a key "kind".
void add_model_kind(ModelKind kind);
/// Returns the kind called `name`, or null if there is none.
const ModelKind* find_model_kind(const std::string& name);

/// Returns smaller versions of a kind's config: one list for each way to scale the config down, in
/// the order in which to try them. If the kind has scale_down, there is one list with one version,
/// or no list if the config can't be scaled down. Otherwise there is one list for each integer key,
/// and the list for the key with the largest value is first. Each version in a key's list sets this
/// key to half of its value or to a divisor of its value. The versions pass the kind's check, but
/// they are guesses: a model of such a config may be invalid or not smaller.
std::vector<std::vector<AnyConfig>> scaled_versions(const ModelKind& kind, const AnyConfig& config);
/// Halves a size, but not below `least`. If the size is at most `least`, returns false and leaves
/// the size unchanged.
bool halve(int64_t& size, int64_t least);
/// Returns half of a size, rounded down to a multiple of g = gcd(size, 16), but at least g.
int64_t half_width(int64_t size);

/// Returns a model of a kind with its initial values, which depend only on the seed and each
/// parameter's path.
std::unique_ptr<Model> make_model(const ModelKind& kind, const AnyConfig& config,
                                  const ModelSizes& sizes, uint64_t seed);
/// Fills `parameters`, which must not be cut among ranks, with the initial values that the model's
/// config selects.
void initialize(const std::vector<NamedParameter>& parameters, const AnyConfig& config,
                uint64_t seed);

}  // namespace lathe
