// Attention of separate queries, keys and values. Causal self-attention on packed projections is
// attention() of ops.h.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/variable.h"

namespace lathe {

struct AttentionOptions {
  /// bool: who may look at whom; floating point: added to the scores, with a gradient where it
  /// wants one. Broadcasts to
  /// [..., L, S]. A query that may look at nothing gets zeros.
  Variable mask = {};
  double dropout = 0;      ///< of the probabilities, in training; see dropout()
  bool is_causal = false;  ///< query i looks at keys 0 to i; beside a mask both bind
  std::optional<double> scale = std::nullopt;  ///< of the scores; 1 / sqrt(E) unless it is given
  bool enable_gqa = false;  ///< keys and values of fewer heads (dim -3), each for several queries'
  uint64_t stream = 0;      ///< of dropout's random numbers
};
/// softmax(q k^T scale + mask) v (Vaswani et al. 2017): query [..., L, E], key [..., S, E], value
/// [..., S, D] ->
/// [..., L, D], in the query's dtype. Composed: [..., L, S] scores are kept for backward, in
/// float32 or wider.
Variable scaled_dot_product_attention(const Variable& query, const Variable& key,
                                      const Variable& value, const AttentionOptions& options = {});

/// Causal attention of projections with heads side by side, of which keys and values may have fewer
/// (kv_heads), each for heads / kv_heads of the queries' in turn (Ainslie et al. 2023): query [B,
/// T, H D], key and value [B, S, K D] -> [B, T, H D]. Query t stands at place S - T + t and sees
/// the keys up to it; there are gradients where S is T. Lathe's kernel on CPUs, linear memory in T
/// and no key repeated; elsewhere attention() of repeated keys. Where S is T: `starts` as in
/// attention() of packed projections, and `turns` as in rotate(), which queries and keys are turned
/// by first.
Variable attention(const Variable& query, const Variable& key, const Variable& value, int64_t heads,
                   int64_t kv_heads, const at::Tensor& starts = {}, const at::Tensor& turns = {});

/// Rotary positions: x [B, T, H D], heads side by side; turns [T, D] or [B, T, D] of floating
/// point, the cosines of a place's D / 2 angles and then their sines (Rotary::turns) -> x with each
/// pair of channels (i, i + D / 2) of a head turned by angle i. Su et al. 2021. Computed in
/// float32, or float64 for x of that.
Variable rotate(const Variable& x, const at::Tensor& turns);

}  // namespace lathe
