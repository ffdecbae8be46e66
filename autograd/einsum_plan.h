// Plans the order in which the operands of an einsum are multiplied.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "autograd/einops.h"

namespace lathe {

/// The indices of an operand, as numbers. The dims of "..." are -1, -2, ..., counted from the last.
using Labels = std::vector<int>;

/// Returns whether `l` is among `labels`.
inline bool has(const Labels& labels, int l) {
  return std::find(labels.begin(), labels.end(), l) != labels.end();
}

/// Returns the indices that must not be summed yet: the indices of the result, `out`, and of
/// `others`, the operands that are not part of the current sum or product.
template <class Lists>
Labels unsummed_labels(const Labels& out, const Lists& others) {
  Labels wanted = out;
  for (const auto& o : others) wanted.insert(wanted.end(), o.begin(), o.end());
  return wanted;
}

/// Returns the plan for operands with the indices `in`. Within an operand, an index must appear
/// only once. Every index of an operand must also be in another operand or in the result, `out`.
EinsumPlan plan_products(const std::vector<Labels>& in, const Labels& out,
                         const std::map<int, int64_t>& sizes);

}  // namespace lathe
