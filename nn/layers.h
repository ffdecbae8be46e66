// Layers: plain structs of parameters and sizes, called like functions. Made with their sizes; their values come from
// nn/init.h. Shapes: B batch, T time, C channels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "core/mode.h"
#include "nn/module.h"

namespace lathe {

/// y = x W^T + b, with an adapter + scale (x A^T) B^T. x [..., in] -> [..., out].
struct Linear {
  Variable weight, bias;  ///< [out, in]; [out] or undefined
  Role role = Role::weight;
  Variable lora_a, lora_b;  ///< [rank, in], [out, rank]; undefined: no adapter. Hu et al. 2021, "LoRA"
  double lora_scale = 1;    ///< alpha / rank

  Linear() = default;
  Linear(int64_t in, int64_t out, bool with_bias, const Role& role = Role::weight);
  /// `residual` [..., out], where given, is added, and the result has its dtype.
  Variable operator()(const Variable& x, const Variable& residual = {}) const;
  bool has_adapter() const { return lora_a.defined(); }
  /// `options`: where its parameters are, and their dtype. All zero until they are initialised.
  void add_adapter(int64_t rank, double alpha, at::TensorOptions options = {});
  /// Adds the adapter, which must be there, into the float32 weight, and drops it.
  void merge_adapter();
  void visit(Visit& v) {
    v("weight", weight, role);
    v("bias", bias, Role::bias);
    v("lora_a", lora_a, Role::lora_a);
    v("lora_b", lora_b, Role::lora_b);
  }
};

/// ids int64 [...] -> rows [..., C].
struct Embedding {
  Variable weight;  ///< [rows, C]
  Role role = Role::embedding;

  Embedding() = default;
  Embedding(int64_t rows, int64_t channels, const Role& role = Role::embedding);
  Variable operator()(const at::Tensor& ids) const { return embedding(ids, weight); }
  void visit(Visit& v) { v("weight", weight, role); }
};

struct LayerNorm {
  Variable weight, bias;  ///< [C]; bias may be undefined
  double eps = 1e-5;

  LayerNorm() = default;
  LayerNorm(int64_t channels, bool with_bias);
  /// In the dtype that products take it in: what it makes goes to a linear layer.
  Variable operator()(const Variable& x) const;
  void visit(Visit& v) {
    v("weight", weight, Role::scale);
    v("bias", bias, Role::bias);
  }
};

/// dropout() of a place in the model, which place() sets.
struct Dropout {
  double p = 0;
  uint64_t stream = 0;

  Dropout() = default;
  explicit Dropout(double p_) : p(p_) {}
  Variable operator()(const Variable& x) const { return dropout(x, p, stream); }
  bool active() const { return p > 0 && is_training(); }
  void visit(Visit& v) { v.stream(stream); }
};

/// Causal multi-head self-attention. x [B, T, C], and `residual` that is added -> [B, T, C].
struct CausalSelfAttention {
  Linear qkv, proj;
  int64_t heads = 1;

  CausalSelfAttention() = default;
  CausalSelfAttention(int64_t channels, int64_t heads, bool bias);
  Variable operator()(const Variable& x_BTC, const Variable& residual = {}) const;
  void visit(Visit& v) {
    v("qkv", qkv);
    v("proj", proj);
  }
};

/// The transformer's feed-forward block: C -> 4C, GELU, 4C -> C; and `residual` that is added. On CPUs without second
/// derivatives.
struct FeedForward {
  Linear up, down;

  FeedForward() = default;
  FeedForward(int64_t channels, bool bias);
  Variable operator()(const Variable& x, const Variable& residual = {}) const;
  void visit(Visit& v) {
    v("up", up);
    v("down", down);
  }
};

/// Runs its steps in turn. Steps that hold parameters are named by their place: "0.weight".
class Sequential {
 public:
  template <class Module>
  Sequential& add(Module module) {
    auto held = std::make_shared<Module>(std::move(module));
    steps_.push_back({[held](const Variable& x) { return (*held)(x); },
                      [held](Visit& v, const std::string& name) {
                        if constexpr (requires { held->visit(v); }) v(name, *held);
                      }});
    return *this;
  }
  Variable operator()(Variable x) const {
    for (const auto& s : steps_) x = s.run(x);
    return x;
  }
  void visit(Visit& v) {
    for (size_t i = 0; i < steps_.size(); ++i) steps_[i].visit(v, std::to_string(i));
  }

 private:
  struct Step {
    std::function<Variable(const Variable&)> run;
    std::function<void(Visit&, const std::string&)> visit;
  };
  std::vector<Step> steps_;
};

/// A multi-layer perceptron with ReLU between its linear layers. sizes {in, hidden..., out}.
Sequential mlp(const std::vector<int64_t>& sizes);

}  // namespace lathe
