// Multi-head attention. Shapes: B batch, T query positions, S key positions, C channels, H heads, D
// = C / H.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/ops.h"
#include "autograd/ops/attention.h"
#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "nn/module.h"

namespace lathe {

/// Causal multi-head self-attention: x [B, T, C] -> [B, T, C], plus `residual` [B, T, C] if it is
/// given. With `starts` [B, T], position t does not see positions before starts[t]; see attention()
/// in autograd/ops.h.
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

/// Options that change the angles of rotary positions for contexts longer than in training.
struct RotaryScaling {
  /// linear: every angle is divided by `factor` (Chen et al. 2023, "Extending context window ...
  /// via positional interpolation"). llama3: angles with wavelengths above original_context / low
  /// are divided by `factor`, angles with wavelengths below original_context / high stay, and
  /// angles in between are blended (Llama 3.1). yarn: angles are blended as well, and the blend is
  /// linear in the index of the pair. The blend begins at the pair with `high` waves in
  /// original_context, and ends at the pair with `low` waves. Cosines and sines are multiplied by
  /// `attention_factor`, where 0 stands for 0.1 ln(factor) + 1 (Peng et al. 2023, "YaRN").
  enum class Kind : uint8_t { none, linear, llama3, yarn } kind = Kind::none;
  double factor = 1, low = 1, high = 4, original_context = 8192, attention_factor = 0;
  bool truncate = true;  ///< whether yarn rounds the index of the blend's first pair down, and of
                         ///< its last pair up
};

/// Rotary positions: rotates the pair of channels (i, i + D / 2) at position t by the angle t
/// base^(-2 i / D), so that a dot product of a query and a key depends on the distance of their
/// positions. Su et al. 2021. As in GPT-NeoX and LLaMA, a pair has one channel from each half.
struct Rotary {
  int64_t width = 0;  ///< D, even
  double base = 10000;
  RotaryScaling scaling;

  Rotary() = default;
  explicit Rotary(int64_t width, double base = 10000, const RotaryScaling& scaling = {});
  /// Rotates x [B, H, T, D], whose positions are first, first + 1, ...
  Variable operator()(const Variable& x_BHTD, int64_t first = 0) const;
  /// Returns the table of cosines and sines that rotate() takes: float64 [..., D] for positions
  /// int64 [...].
  at::Tensor rope_table(const at::Tensor& places) const;
  /// Returns the angle of each pair at position 1: float64 [D / 2]. Computes the angles on the
  /// device that uses them, since a copy from the CPU would make a step wait for the GPU.
  at::Tensor frequencies(at::Device device = at::kCPU) const;
};

/// Causal self-attention with rotary positions, and with fewer heads for keys and values than for
/// queries (Ainslie et al. 2023, "GQA"). Shapes in addition to those above: K heads of keys and
/// values, R = H D, G = K D.
struct GroupedQueryAttention {
  Linear q, k, v, proj;
  /// Norms of queries and keys before rotation; nullopt: none. A norm normalizes each head
  /// separately (Henry et al. 2020; Qwen 3), or all heads together (OLMo 2).
  std::optional<RMSNorm> q_norm, k_norm;
  int64_t heads = 1, kv_heads = 1;
  ScoreOptions scores{};  ///< options of the attention scores; set them after construction

  GroupedQueryAttention() = default;
  /// Heads have `width` channels, and kv_heads must divide heads. `bias` is for q, k and v. With
  /// `norm_eps`, queries and keys are normalized with this epsilon: all heads together if
  /// `norms_all`, otherwise each head separately.
  GroupedQueryAttention(int64_t channels, int64_t heads, int64_t kv_heads, int64_t width, bool bias,
                        std::optional<double> norm_eps, bool norms_all = false);
  /// Maps x [B, T, C] to [B, T, C], and adds `residual` if it is given. `rope_table` is [T, D] or
  /// [B, T, D], from Rotary::rope_table(); if it is undefined, nothing is rotated. `starts` has the
  /// same meaning as for CausalSelfAttention.
  Variable operator()(const Variable& x_BTC, const at::Tensor& rope_table,
                      const Variable& residual = {}, const at::Tensor& starts = {}) const;
  void visit(Visit& v_) {
    v_("q", q);
    v_("k", k);
    v_("v", v);
    v_("q_norm", q_norm);
    v_("k_norm", k_norm);
    v_("proj", proj);
  }
};

/// Selects the positions that attention must not see.
struct AttentionMask {
  bool causal = false;   ///< hides later positions; needs T = S
  at::Tensor hidden{};   ///< bool [T, S] or [B, T, S], true where hidden; or floating point, and
                         ///< added to the scores
  at::Tensor padding{};  ///< bool [B, S], true for keys that are hidden from all queries
};

/// Scaled dot-product attention of projected queries, keys and values. Vaswani et al. 2017;
/// torch.nn's MultiheadAttention, batch first. If a query sees no keys, `out_proj` gets zeros for
/// this query; in torch, it gets NaN.
struct MultiHeadAttention {
  Linear q, k, v, out_proj;
  Dropout drop;                  ///< dropout on the attention probabilities
  std::optional<Rotary> rotary;  ///< rotates queries and keys; set it after construction
  int64_t heads = 1;

  MultiHeadAttention() = default;
  /// `heads` must divide `channels`. Keys and values have `channels` channels unless key_channels
  /// and value_channels give other numbers.
  MultiHeadAttention(int64_t channels, int64_t heads, bool bias = true, double dropout = 0,
                     std::optional<int64_t> key_channels = std::nullopt,
                     std::optional<int64_t> value_channels = std::nullopt);
  /// Maps query [B, T, C], key [B, S, K] and value [B, S, V] to [B, T, C].
  Variable operator()(const Variable& query, const Variable& key, const Variable& value,
                      const AttentionMask& mask = {}) const;
  /// Computes self-attention: x is the query, the key and the value.
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
