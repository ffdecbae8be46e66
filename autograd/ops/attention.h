// Attention of separate queries, keys and values. Causal self-attention on packed projections is
// attention() of ops.h.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/variable.h"

namespace lathe {

struct AttentionOptions {
  /// bool: true where a query may see a key; floating point: added to the scores, with a gradient
  /// if it requires one. Broadcasts to [..., L, S]. A query that may see no key gets zeros.
  Variable mask = {};
  double dropout = 0;      ///< applied to the probabilities in training; see dropout()
  bool is_causal = false;  ///< query i sees keys 0 to i; a mask applies in addition
  std::optional<double> scale = std::nullopt;  ///< factor of the scores; 1 / sqrt(E) by default
  bool enable_gqa = false;  ///< keys and values have fewer heads (dim -3), each of which serves
                            ///< several heads of queries
  uint64_t stream = 0;      ///< the stream of dropout's random numbers
  double softcap = 0;       ///< as in ScoreOptions
};
/// Returns softmax(q k^T scale + mask) v (Vaswani et al. 2017): query [..., L, E], key [..., S, E],
/// value [..., S, D] -> [..., L, D], in the query's dtype. It is composed of ops, so scores [...,
/// L, S] in float32 or wider are kept for backward.
Variable scaled_dot_product_attention(const Variable& query, const Variable& key,
                                      const Variable& value, const AttentionOptions& options = {});

/// How causal attention computes scores, and which keys a query sees.
struct ScoreOptions {
  /// Number of keys that a query sees: its own and those before it (Beltagy et al. 2020,
  /// "Longformer"; Jiang et al. 2023, "Mistral 7B"); 0: all up to its own.
  int64_t window = 0;
  double scale = 0;  ///< factor of the scores; 0: 1 / sqrt(D)
  /// c: a score s becomes c tanh(s / c) before the mask applies (Bello et al. 2016; Gemma Team
  /// 2024, "Gemma 2"); 0: scores stay as they are.
  double softcap = 0;
};

/// Computes causal attention of projections whose heads are side by side: query [B, T, H D], key
/// and value [B, S, K D] -> [B, T, H D]. Keys and values may have fewer heads (kv_heads); each
/// serves heads / kv_heads consecutive heads of queries (Ainslie et al. 2023). Query t is at
/// position S - T + t and sees the keys up to there. Gradients need S = T. On CPUs this is Lathe's
/// kernel, with memory linear in T and without repeated keys; elsewhere, and in float64, it is
/// attention() of repeated keys, or is composed of ops if there is a scale or softcap. `starts`
/// works as in attention() of packed projections: query t sees no key before starts[t] <= S - T +
/// t. If S = T, queries and keys are first rotated by `rope_table` as in rotate(). Throws if an
/// option is negative or not finite.
Variable attention(const Variable& query, const Variable& key, const Variable& value, int64_t heads,
                   int64_t kv_heads, const at::Tensor& starts = {},
                   const at::Tensor& rope_table = {}, const ScoreOptions& scores = {});

/// Applies rotary positions (Su et al. 2021) to x [B, T, H D] with heads side by side: rotates each
/// pair of channels (i, i + D / 2) of a head by angle i of its position. `rope_table`, [T, D] or
/// [B, T, D] of floating point, has the cosines of a position's D / 2 angles and then their sines
/// (Rotary::rope_table). Computes in float32, or in float64 if x is float64.
Variable rotate(const Variable& x, const at::Tensor& rope_table);

}  // namespace lathe
