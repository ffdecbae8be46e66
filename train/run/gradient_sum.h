// Adds up the gradients of a step's micro-batches in the order of core/tree_sum.h.
#pragma once

#include <span>
#include <vector>

#include "core/tree_sum.h"
#include "nn/module.h"

namespace lathe {

/// Backward adds each micro-batch to the gradients of the parameters, which is the tree's order
/// within a pair. Before the next pair begins, the sum of the last one is set aside here. So a step
/// of two micro-batches needs no memory beside the gradients, and one of n at most log2(n) - 1
/// copies of them.
class GradientSum {
 public:
  /// `parameters` must outlive it.
  explicit GradientSum(std::span<const NamedParameter> parameters) : parameters_(parameters) {}

  /// Prepares for the backward of micro-batch `n` of this process, from 0.
  void begin(int64_t n);
  /// Leaves the sum of all micro-batches as the parameters' gradients.
  void finish();

 private:
  using Gradients = std::vector<at::Tensor>;
  Gradients take();

  std::span<const NamedParameter> parameters_;
  TreeSum<Gradients> pairs_;
};

}  // namespace lathe
