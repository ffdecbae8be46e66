// Implements attention composed of other ops.
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>

#include "autograd/ops.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/composed.h"
#include "autograd/ops/dims.h"
#include "core/error.h"
#include "core/mode.h"

namespace lathe {
namespace {

[[maybe_unused]] const bool scaled_attention_registered =
    register_composed({"scaled_dot_product_attention"});

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Repeats each head n / h times: [..., h, S, E] -> [..., n, S, E].
Variable repeated_heads(const Variable& x, int64_t n) {
  const int64_t h = x.size(-3);
  if (h == n) return x;
  LATHE_CHECK(h > 0 && n % h == 0, "scaled_dot_product_attention: ", n,
              " heads of queries are not a multiple of ", h);
  Dims sizes = dims_of(x.sizes()), joined = sizes;
  sizes.insert(sizes.end() - 2, n / h);
  joined[joined.size() - 3] = n;
  return reshape(expand(unsqueeze(x, -3), sizes), joined);
}

}  // namespace

Variable scaled_dot_product_attention(const Variable& query, const Variable& key,
                                      const Variable& value, const AttentionOptions& o) {
  require_defined("scaled_dot_product_attention", {&query, &key, &value});
  const auto sentence = [&](const char* what) {
    return str("scaled_dot_product_attention(", describe(query.data()), ", ", describe(key.data()),
               ", ", describe(value.data()), "): ", what);
  };

  LATHE_CHECK(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2 &&
                  query.size(-1) == key.size(-1) && key.size(-2) == value.size(-2),
              sentence("needs [..., L, E], [..., S, E] and [..., S, D]"));
  LATHE_CHECK(!o.enable_gqa || (query.dim() >= 3 && key.dim() >= 3 && value.dim() >= 3),
              sentence("enable_gqa needs heads in dim -3"));
  LATHE_CHECK(o.softcap >= 0 && std::isfinite(o.softcap),
              sentence("softcap must be finite and at least 0, not "), o.softcap);

  // Under autocast, low-precision inputs are multiplied in their dtype. Without autocast, they are
  // cast to float32, so that intermediate results are not rounded.
  const auto wide = [](const Variable& x) {
    const bool low = x.dtype() == at::kHalf || x.dtype() == at::kBFloat16;
    return low && mode().compute == at::kFloat ? cast(x, at::kFloat) : x;
  };

  const Variable q = wide(query),
                 k = o.enable_gqa ? repeated_heads(wide(key), query.size(-3)) : wide(key);
  const Variable v = o.enable_gqa ? repeated_heads(wide(value), query.size(-3)) : wide(value);
  // Scale q [..., L, E], which is usually smaller than the scores [..., L, S].
  const double scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  Variable scores = matmul(q * scale, transpose(k, -2, -1));
  if (scores.dtype() == at::kHalf || scores.dtype() == at::kBFloat16)
    scores = cast(scores, at::kFloat);

  if (o.softcap > 0) scores = tanh(scores / o.softcap) * o.softcap;

  at::Tensor hidden;  // bool: true where a query must not see a key
  if (o.is_causal)
    hidden = at::ones({scores.size(-2), scores.size(-1)}, scores.data().options().dtype(at::kBool))
                 .triu(1);
  if (o.mask.defined()) {
    const at::Tensor& m = o.mask.data();
    if (m.scalar_type() != at::kBool) scores = scores + cast(o.mask, scores.dtype());
    const at::Tensor none = m.scalar_type() == at::kBool ? m.logical_not() : m.eq(-infinity);
    hidden = hidden.defined() ? hidden.logical_or(none) : none;
  }

  at::Tensor blind;  // bool: queries that see no key
  if (o.mask.defined()) blind = hidden.expand(scores.sizes()).all(-1, /*keepdim=*/true);
  // In a row of only -inf, softmax and its gradient would be NaN. Set the scores of such a row to 0
  // before softmax, and its probabilities to 0 afterwards.
  if (hidden.defined()) scores = masked_fill(scores, hidden, -infinity);
  if (blind.defined()) scores = masked_fill(scores, blind, 0);
  Variable p = softmax(scores, -1);
  if (blind.defined()) p = masked_fill(p, blind, 0);

  p = dropout(p, o.dropout, o.stream);

  const at::ScalarType product = mode().compute == at::kFloat ? p.dtype() : v.dtype();
  return cast(matmul(cast(p, product), v), query.dtype());
}

}  // namespace lathe
