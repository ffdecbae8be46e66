// Adds up the gradients of a step's micro-batches in the order of core/tree_sum.h.
#pragma once

#include <span>
#include <vector>

#include "autograd/parameter.h"
#include "core/tree_sum.h"

namespace lathe {

/// Backward adds each micro-batch to the gradients of the parameters, which is the tree's order
/// within a pair. Before the next pair begins, the sum of the last one is set aside here. So a step
/// of two micro-batches needs no memory beside the gradients, and one of n at most log2(n) - 1
/// copies of them.
class GradientSum {
 public:
  /// `parameters` must outlive it.
  explicit GradientSum(std::span<const NamedParameter> parameters)
      : parameters_(parameters), pairs_(parameters.size()) {}

  /// Prepares for the backward pass of micro-batch `n` of this process, from 0.
  void begin(int64_t n);
  /// Leaves the sum of all micro-batches as the gradient of parameter i. Call it once for each
  /// parameter, when the last backward pass has added to it.
  void finish(size_t i);

 private:
  /// Moves the gradient of parameter i into the sum of its pairs.
  void set_aside(size_t i);

  std::span<const NamedParameter> parameters_;
  std::vector<TreeSum<at::Tensor>> pairs_;  // of each parameter; its tensors may be undefined
};

}  // namespace lathe
