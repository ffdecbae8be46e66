// Declares operations on named dims: Rogozhnikov's einops (ICLR 2022) and Einstein summation. They
// are composed of ops, so they have gradients of any order. Each thread parses a pattern once and
// caches it. The error for a wrong pattern names the pattern, the axis and the sizes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Sizes by name: {{"h", 2}, {"w", 3}}.
using AxisSizes = std::vector<std::pair<std::string, int64_t>>;

// A pattern is "names of x's dims -> names of the result's dims", such as "b c (h w) -> b h w c".
// Names consist of letters, digits and underscores, begin with a letter, and do not end with an
// underscore. Parentheses join several names into one dim, outermost first; "..." stands for all
// other dims; 1 (or "()") is a dim of size 1. Every size that does not follow from the shape of x
// must be given.
/// Reorders, joins and splits dims. Both sides must have the same names.
Variable rearrange(const Variable& x, const std::string& pattern, const AxisSizes& sizes = {});
/// Rearranges several tensors of one shape, which are first stacked along a new first dim.
Variable rearrange(const std::vector<Variable>& xs, const std::string& pattern,
                   const AxisSizes& sizes = {});
/// Reduces over the names that appear on the left only, by "sum", "mean", "max", "min" or "prod". A
/// number above 1 on the left is an axis of that size: "b (h 2) (w 2) -> b h w" halves an image.
/// Elements that tie for the max or min share its gradient.
Variable reduce(const Variable& x, const std::string& pattern, const std::string& reduction,
                const AxisSizes& sizes = {});
/// Repeats x along the names that appear on the right only, whose sizes must be given. A number on
/// the right is an axis of that size.
Variable repeat(const Variable& x, const std::string& pattern, const AxisSizes& sizes = {});

/// Multiplies the operands and sums over the indices that are not in the result, in the notation of
/// torch.einsum. An index is one letter: "bij,bjk->bik". "..." stands for dims that broadcast. An
/// index that appears twice in one operand takes the diagonal. If the equation has no "->", the
/// result has the broadcast dims and then the indices that appear once, in alphabetical order.
/// Sizes of 1 broadcast. Three or more operands are multiplied two at a time in the cheapest order
/// (see einsum_plan).
Variable einsum(const std::string& equation, const std::vector<Variable>& operands);
/// Computes einsum() in the notation of einops, where indices are names between spaces: "batch i j,
/// batch j k -> batch i k".
Variable einsum(const std::vector<Variable>& operands, const std::string& pattern);

/// The order in which einsum multiplies operands.
struct EinsumPlan {
  /// Pairs of positions in the list of remaining operands, the smaller position first. Each pair is
  /// removed from the list and its product is appended.
  std::vector<std::pair<size_t, size_t>> steps;
  /// The number of multiplications: for each pair the product of the sizes of all its indices,
  /// summed over all pairs. For up to 10 operands this is the minimum over all orders. With more
  /// operands, the cheapest pair is always taken next.
  double multiplications = 0;
};
/// Returns the plan for operands of these shapes. Throws the same errors as einsum().
EinsumPlan einsum_plan(const std::string& equation,
                       const std::vector<std::vector<int64_t>>& shapes);

}  // namespace lathe
