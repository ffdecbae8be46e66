// Which operands of an einsum are multiplied first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "autograd/einops.h"

namespace lathe {

/// Indices of an operand are numbers; the dims of "..." are -1, -2, ... from the last.
using Labels = std::vector<int>;

/// Whether `l` is among them.
inline bool has(const Labels& labels, int l) {
  return std::find(labels.begin(), labels.end(), l) != labels.end();
}

/// Indices of which somebody else needs a value: of the result, or of an operand that is left.
template <class Lists>
Labels wanted_by(const Labels& out, const Lists& others) {
  Labels wanted = out;
  for (const auto& o : others) wanted.insert(wanted.end(), o.begin(), o.end());
  return wanted;
}

/// The plan for operands whose indices stand once in each and are each wanted by another operand or
/// the result.
EinsumPlan plan_products(const std::vector<Labels>& in, const Labels& out,
                         const std::map<int, int64_t>& sizes);

}  // namespace lathe
