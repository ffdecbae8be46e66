// Adds up the gradients of a step's micro-batches in the order of core/tree_sum.h.
#pragma once

#include <span>
#include <vector>

#include "autograd/parameter.h"
#include "core/lazy_zeros.h"
#include "core/tree_sum.h"

namespace lathe {

/// Adds `later` to `earlier` in place. An undefined gradient is not a summand.
inline at::Tensor add_gradients(at::Tensor earlier, const at::Tensor& later) {
  if (!earlier.defined()) return later;
  if (later.defined()) add_to(earlier, later);
  return earlier;
}

/// Sums the gradients of a step's micro-batches. The backward passes of a pair of micro-batches add
/// to the parameters' gradients, which is the tree's order within a pair. Before the next pair
/// begins, begin() moves that sum into a TreeSum. A step of two micro-batches therefore needs no
/// additional memory, and a step of n needs at most log2(n) - 1 copies of the gradients.
class GradientSum {
 public:
  /// `parameters` must outlive it. `in_sequence`: adds micro-batches one after another instead,
  /// without copies (train.sum_order).
  GradientSum(std::span<const NamedParameter> parameters, bool in_sequence)
      : parameters_(parameters), in_sequence_(in_sequence), pairs_(parameters.size()) {}

  /// Prepares for the backward pass of micro-batch `n` of this process, from 0, as far as it adds
  /// to parameter i.
  void begin(int64_t n, size_t i);
  /// Leaves the sum of all micro-batches as the gradient of parameter i. Call it once for each
  /// parameter, when the last backward pass has added to it.
  void finish(size_t i);

 private:
  /// Moves the gradient of parameter i into the sum of its pairs.
  void set_aside(size_t i);

  std::span<const NamedParameter> parameters_;
  bool in_sequence_;
  std::vector<TreeSum<at::Tensor>> pairs_;  // of each parameter; its tensors may be undefined
};

}  // namespace lathe
