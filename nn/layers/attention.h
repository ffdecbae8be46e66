// Attention of several heads. Shapes: B batch, T places that ask, S places that are asked, C channels, H heads,
// D = C / H.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/ops.h"
#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "nn/module.h"

namespace lathe {

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

/// Rotary positions: turns the pair of channels (i, i + D / 2) of place t by the angle t base^(-2 i / D), so that a
/// product of two places depends on how far apart they are. Su et al. 2021, in the form of halves that GPT-NeoX and
/// LLaMA have.
struct Rotary {
  int64_t width = 0;  ///< D, even
  double base = 10000;

  Rotary() = default;
  explicit Rotary(int64_t width, double base = 10000);
  /// x [B, H, T, D], whose first place is number `first` -> the same shape.
  Variable operator()(const Variable& x_BHTD, int64_t first = 0) const;
};

/// What a place may not look at.
struct AttentionMask {
  bool causal = false;   ///< at places after its own; for T = S
  at::Tensor hidden{};   ///< bool [T, S] or [B, T, S], true where not; or floating point, which is added to the scores
  at::Tensor padding{};  ///< bool [B, S], true for places that nobody may look at
};

/// Scaled dot-product attention of projected queries, keys and values. Vaswani et al. 2017; torch.nn's
/// MultiheadAttention, batch first. A place that may look at nothing gets zeros, where torch gives NaN.
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
