// Shapes in words: Rogozhnikov's einops (ICLR 2022) and Einstein's sums, composed of ops, so that
// gradients of any order flow. A pattern is parsed once and kept; a wrong one is an error of one
// sentence with the pattern, the axis and the sizes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lathe {

/// Sizes by name: {{"h", 2}, {"w", 3}}.
using AxisSizes = std::vector<std::pair<std::string, int64_t>>;

// Patterns are "names of x's dims -> names of the result's": "b c (h w) -> b h w c", names by
// letters, digits and underscores. Parentheses are one dim made of several, outermost first; "..."
// is all other dims; 1 (or "()") is a dim of size 1. Every size that the shape of x does not tell
// must be given.
/// Reorders, joins and parts dims: both sides have the same names.
Variable rearrange(const Variable& x, const std::string& pattern, const AxisSizes& sizes = {});
/// The same of several tensors of one shape, which a first dim counts.
Variable rearrange(const std::vector<Variable>& xs, const std::string& pattern,
                   const AxisSizes& sizes = {});
/// Reduces over the names that stand on the left alone, by "sum", "mean", "max", "min" or "prod". A
/// number above 1 on the left is an axis of that size, "b (h 2) (w 2) -> b h w" halves an image.
/// Ties of max and min share their gradient.
Variable reduce(const Variable& x, const std::string& pattern, const std::string& reduction,
                const AxisSizes& sizes = {});
/// Repeats x along the names that stand on the right alone, whose sizes are given; a number there
/// is an axis too.
Variable repeat(const Variable& x, const std::string& pattern, const AxisSizes& sizes = {});

/// Sums of products over the indices that the result lacks, in torch.einsum's notation: an index is
/// one letter, "bij,bjk->bik"; "..." is dims that broadcast; an index twice in one operand takes
/// the diagonal; without "->" the result has those that appear once, in the alphabet's order,
/// behind the broadcast ones. Sizes of 1 broadcast. Three and more operands are multiplied two at a
/// time in the cheapest order (see einsum_plan).
Variable einsum(const std::string& equation, const std::vector<Variable>& operands);
/// The same in einops' notation: indices are names between spaces, "batch i j, batch j k -> batch i
/// k".
Variable einsum(const std::vector<Variable>& operands, const std::string& pattern);

/// How einsum multiplies operands of these shapes.
struct EinsumPlan {
  /// Pairs of places in the list of what is left, first below second; their product stands at its
  /// end.
  std::vector<std::pair<size_t, size_t>> steps;
  /// Multiplications, the product of the sizes of all indices of a pair, over all pairs. The least
  /// that any order of pairs has, for up to 10 operands; with more the cheapest pair is taken
  /// first.
  double multiplications = 0;
};
/// For operands of these shapes; the errors are those of einsum.
EinsumPlan einsum_plan(const std::string& equation,
                       const std::vector<std::vector<int64_t>>& shapes);

}  // namespace lathe
