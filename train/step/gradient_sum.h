// Declares GradientSum, which adds up the gradients of a step's micro-batches in the order of
// core/tree_sum.h.
#pragma once

#include <span>
#include <vector>

#include "autograd/parameter.h"
#include "core/lazy_zeros.h"
#include "core/tree_sum.h"

namespace lathe {

/// Adds `later` to `earlier` in place and returns the sum. If one of the two is undefined, returns
/// the other.
inline at::Tensor add_gradients(at::Tensor earlier, const at::Tensor& later) {
  if (!earlier.defined()) return later;
  if (later.defined()) add_to(earlier, later);
  return earlier;
}

/// Adds up the gradients of a step's micro-batches. The backward passes of a pair of micro-batches
/// add to the parameters' gradients, which gives the sum of the pair. Before the next pair begins,
/// begin() moves that sum into a TreeSum. A step of two micro-batches therefore needs no additional
/// memory, and a step of n > 1 micro-batches needs at most ceil(log2(n)) - 1 copies of the
/// gradients.
class GradientSum {
 public:
  /// `parameters` must outlive this object. If `in_sequence` is true (train.sum_order),
  /// micro-batches are instead added one after another, without copies.
  GradientSum(std::span<const NamedParameter> parameters, bool in_sequence)
      : parameters_(parameters), in_sequence_(in_sequence), pairs_(parameters.size()) {}

  /// Prepares the gradient of parameter i for the backward pass of this process's micro-batch `n`
  /// (counted from 0).
  void begin(int64_t n, size_t i);
  /// Sets the gradient of parameter i to the sum of all micro-batches. Call it once for each
  /// parameter, after the last backward pass has added to the parameter's gradient.
  void finish(size_t i);

 private:
  /// Moves the gradient of parameter i, which is the sum of a pair, into the parameter's TreeSum.
  void move_to_tree_sum(size_t i);

  std::span<const NamedParameter> parameters_;
  bool in_sequence_;
  std::vector<TreeSum<at::Tensor>> pairs_;  // sums of pairs for each parameter; the tensors may be
                                            // undefined
};

}  // namespace lathe
