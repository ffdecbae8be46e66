// Declares attention with separate queries, keys and values. For causal self-attention on packed
// projections, see attention() in ops.h.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/variable.h"

namespace lathe {

/// Options of scaled_dot_product_attention().
struct AttentionOptions {
  /// A bool mask is true where a query may attend to a key. A floating-point mask is added to the
  /// scores, and gets a gradient if it requires one. The mask broadcasts to [..., L, S]. A query
  /// that may attend to no key gets zeros.
  Variable mask = {};
  double dropout = 0;      ///< applied to the probabilities in training; see dropout()
  bool is_causal = false;  ///< query i sees only keys 0 to i, of which `mask` may hide some
  std::optional<double> scale = std::nullopt;  ///< multiplies the scores; 1 / sqrt(E) by default
  bool enable_gqa = false;  ///< keys and values may have fewer heads (dim -3) than queries; each
                            ///< such head serves several consecutive heads of queries
  uint64_t stream = 0;      ///< random stream of the dropout mask; see dropout()
  double softcap = 0;       ///< cap on the scores; see ScoreOptions::softcap
};
/// Returns softmax(q k^T scale + mask) v (Vaswani et al. 2017) for query [..., L, E], key [..., S,
/// E] and value [..., S, D]. The result is [..., L, D] in the query's dtype. The function is
/// composed of other ops, so backward keeps the scores [..., L, S] in float32 or wider.
Variable scaled_dot_product_attention(const Variable& query, const Variable& key,
                                      const Variable& value, const AttentionOptions& options = {});

/// Options of causal attention: how it computes scores, and which keys a query sees.
struct ScoreOptions {
  /// Number of keys that a query sees: the key at the query's position and the keys before it
  /// (Beltagy et al. 2020, "Longformer"; Jiang et al. 2023, "Mistral 7B"). 0: no limit.
  int64_t window = 0;
  double scale = 0;  ///< multiplies the scores; 0: 1 / sqrt(D)
  /// Cap c on the scores: a score s becomes c tanh(s / c) before the mask applies (Bello et al.
  /// 2016; Gemma Team 2024, "Gemma 2"). 0: no cap.
  double softcap = 0;
};

/// Computes causal attention on projections whose heads are side by side: query [B, T, H D], key
/// and value [B, S, K D] -> [B, T, H D]. Keys and values have kv_heads heads, each of which serves
/// heads / kv_heads consecutive heads of queries (Ainslie et al. 2023). Query t is at position S -
/// T + t and sees the keys up to that position. Where they apply, kernels with memory linear in T
/// are used: Lathe's on CPUs, and ATen's (attention_gpu.h) on GPUs if there is no softcap. None of
/// these kernels supports float64. On GPUs, the kernel for float32 copies keys and values for each
/// head of queries; the kernels for bfloat16 and float16 do not. Where no kernel applies, the
/// result is composed of ops if S > T or `scores` has a scale or softcap. Otherwise, keys and
/// values are repeated and passed to attention() in ops.h.
///
/// `starts` is int64 [B, T], as for attention() in ops.h: query t sees no key before starts[t],
/// which is at most S - T + t. If `rope_table` is defined, S must equal T, and queries and keys are
/// first rotated as in rotate(). Throws if an option is negative or not finite.
Variable attention(const Variable& query, const Variable& key, const Variable& value, int64_t heads,
                   int64_t kv_heads, const at::Tensor& starts = {},
                   const at::Tensor& rope_table = {}, const ScoreOptions& scores = {});

/// Applies rotary position embeddings (Su et al. 2021) to x [B, T, H D] with heads side by side:
/// rotates each pair of channels (i, i + D / 2) of a head by the angle i of its position.
/// `rope_table` is [T, D] or [B, T, D] of floating point. For each position it has the cosines of
/// the D / 2 angles, followed by their sines (Rotary::rope_table). Computes in float32, or in
/// float64 if x is float64.
Variable rotate(const Variable& x, const at::Tensor& rope_table);

}  // namespace lathe
