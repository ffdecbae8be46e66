// Attention of separate queries, keys and values. Causal self-attention on packed projections, with flash kernels, is
// attention() of ops.h.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/variable.h"

namespace lathe {

struct AttentionOptions {
  /// bool: who may look at whom; floating point: added to the scores, with a gradient where it wants one. Broadcasts to
  /// [..., L, S]. A query that may look at nothing gets zeros.
  Variable mask = {};
  double dropout = 0;                          ///< of the probabilities, in training; see dropout()
  bool is_causal = false;                      ///< query i looks at keys 0 to i; beside a mask both bind
  std::optional<double> scale = std::nullopt;  ///< of the scores; 1 / sqrt(E) unless it is given
  bool enable_gqa = false;                     ///< keys and values of fewer heads (dim -3), each for several queries'
  uint64_t stream = 0;                         ///< of dropout's random numbers
};
/// softmax(q k^T scale + mask) v (Vaswani et al. 2017): query [..., L, E], key [..., S, E], value [..., S, D] ->
/// [..., L, D], in the query's dtype. Composed: [..., L, S] scores are kept for backward, in float32 or wider.
Variable scaled_dot_product_attention(const Variable& query, const Variable& key, const Variable& value,
                                      const AttentionOptions& options = {});

}  // namespace lathe
