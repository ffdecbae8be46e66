// Defines which micro-batches of a step a process computes.
#pragma once

#include <cstdint>

namespace lathe {

/// The micro-batches of one process. All processes together compute `per_step` micro-batches in a
/// step. This process computes `count` of them, with the indices first, first + stride, first + 2 *
/// stride, ...
struct BatchPlan {
  int64_t per_step = 1, first = 0, count = 1, stride = 1;
  /// Whether the gradients of micro-batches are summed one after another (train.sum_order =
  /// sequence) instead of in the order of core/tree_sum.h.
  bool in_sequence = false;

  /// Returns the index within a step of the n-th micro-batch (counted from 0) that this process
  /// computes in the step.
  int64_t in_step(int64_t n) const { return first + n * stride; }
  /// Returns the index of the n-th micro-batch (counted from 0) that this process computes in the
  /// run. This index counts the micro-batches of all processes in all steps.
  int64_t global_index(int64_t n) const { return n / count * per_step + in_step(n % count); }
};

}  // namespace lathe
