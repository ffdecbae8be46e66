// Attention of several heads. Shapes: B batch, T query positions, S key positions, C
// channels, H heads, D = C / H.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/ops.h"
#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "nn/module.h"

namespace lathe {

/// Causal multi-head self-attention. x [B, T, C], and `residual` that is added -> [B, T, C].
/// `starts` [B, T], where it is defined: place t sees none before starts[t]; see attention() in
/// autograd/ops.h.
struct CausalSelfAttention {
  Linear qkv, proj;
  int64_t heads = 1;

  CausalSelfAttention() = default;
  CausalSelfAttention(int64_t channels, int64_t heads, bool bias);
  Variable operator()(const Variable& x_BTC, const Variable& residual = {},
                      const at::Tensor& starts = {}) const;
  void visit(Visit& v) {
    v("qkv", qkv);
    v("proj", proj);
  }
};

/// How the angles of rotary positions are changed for contexts longer than a model was trained
/// with.
struct RotaryScaling {
  /// none; linear: every angle over `factor` (Chen et al. 2023, "Extending context window ... via
  /// positional interpolation"); llama3: angles whose waves are longer than original_context / low
  /// over `factor`, those shorter than original_context / high as they are, between them a mixture
  /// (Llama 3.1). yarn: the same by the number of the pair, from where original_context has `high`
  /// waves to where it has `low`, and cosines and sines times `attention_factor` (Peng et al. 2023,
  /// "YaRN"; 0: 0.1 ln(factor) + 1).
  enum class Kind : uint8_t { none, linear, llama3, yarn } kind = Kind::none;
  double factor = 1, low = 1, high = 4, original_context = 8192, attention_factor = 0;
};

/// Rotary positions: turns the pair of channels (i, i + D / 2) of place t by the angle t base^(-2 i
/// / D), so that a product of two places depends on how far apart they are. Su et al. 2021, in the
/// form of halves that GPT-NeoX and LLaMA have.
struct Rotary {
  int64_t width = 0;  ///< D, even
  double base = 10000;
  RotaryScaling scaling;

  Rotary() = default;
  explicit Rotary(int64_t width, double base = 10000, const RotaryScaling& scaling = {});
  /// x [B, H, T, D], whose first place is number `first` -> the same shape.
  Variable operator()(const Variable& x_BHTD, int64_t first = 0) const;
  /// What rotate() takes, for places of any shape: float64 [..., D].
  at::Tensor turns(const at::Tensor& places) const;
  /// Angle of each pair at place 1: float64 [D / 2].
  at::Tensor frequencies() const;
};

/// Causal self-attention with rotary positions and fewer heads of keys and values than of queries
/// (Ainslie et al. 2023, "GQA"). Shapes beside those above: K heads of keys and values, R = H D, G
/// = K D.
struct GroupedQueryAttention {
  Linear q, k, v, proj;
  std::optional<RMSNorm> q_norm,
      k_norm;  ///< of each head, before it is turned (Henry et al. 2020; Qwen 3)
  int64_t heads = 1, kv_heads = 1;

  GroupedQueryAttention() = default;
  /// Heads of `width` channels; kv_heads divides heads. `bias`: of q, k and v. `norm_eps`: with
  /// norms of that eps.
  GroupedQueryAttention(int64_t channels, int64_t heads, int64_t kv_heads, int64_t width, bool bias,
                        std::optional<double> norm_eps);
  /// x [B, T, C], turns [T, D] or [B, T, D] as Rotary gives them, and `residual` that is added ->
  /// [B, T, C]. `starts` as for CausalSelfAttention.
  Variable operator()(const Variable& x_BTC, const at::Tensor& turns, const Variable& residual = {},
                      const at::Tensor& starts = {}) const;
  void visit(Visit& v_) {
    v_("q", q);
    v_("k", k);
    v_("v", v);
    v_("q_norm", q_norm);
    v_("k_norm", k_norm);
    v_("proj", proj);
  }
};

/// What a place may not look at.
struct AttentionMask {
  bool causal = false;   ///< at places after its own; for T = S
  at::Tensor hidden{};   ///< bool [T, S] or [B, T, S], true where not; or floating point, which is
                         ///< added to the scores
  at::Tensor padding{};  ///< bool [B, S], true for places that nobody may look at
};

/// Scaled dot-product attention of projected queries, keys and values. Vaswani et al. 2017;
/// torch.nn's MultiheadAttention, batch first. A place that may look at nothing gets zeros, where
/// torch gives NaN.
struct MultiHeadAttention {
  Linear q, k, v, out_proj;
  Dropout drop;                  ///< on the probabilities
  std::optional<Rotary> rotary;  ///< turns queries and keys; set it after making
  int64_t heads = 1;

  MultiHeadAttention() = default;
  /// `heads` must divide `channels`. Keys and values have as many channels unless said otherwise.
  MultiHeadAttention(int64_t channels, int64_t heads, bool bias = true, double dropout = 0,
                     std::optional<int64_t> key_channels = std::nullopt,
                     std::optional<int64_t> value_channels = std::nullopt);
  /// query [B, T, C], key [B, S, K], value [B, S, V] -> [B, T, C].
  Variable operator()(const Variable& query, const Variable& key, const Variable& value,
                      const AttentionMask& mask = {}) const;
  /// Self-attention.
  Variable operator()(const Variable& x_BTC, const AttentionMask& mask = {}) const {
    return (*this)(x_BTC, x_BTC, x_BTC, mask);
  }
  void visit(Visit& v_) {
    v_("q", q);
    v_("k", k);
    v_("v", v);
    v_("out_proj", out_proj);
    v_("dropout", drop);
  }
};

}  // namespace lathe
