// Which micro-batches a process computes.
#pragma once

#include <cstdint>

namespace lathe {

/// A step has `per_step` micro-batches, numbered through all steps; this process computes `count`
/// of each step: the `first` one and then every `stride`-th.
struct BatchPlan {
  int64_t per_step = 1, first = 0, count = 1, stride = 1;
  /// Add micro-batches one after another, not in the order of core/tree_sum.h (train.sum_order).
  bool in_sequence = false;

  /// Returns the index within a step of the n-th micro-batch that this process computes in it.
  int64_t in_step(int64_t n) const { return first + n * stride; }
  /// Returns the index, among the micro-batches of all steps, of the n-th micro-batch that this
  /// process computes.
  int64_t global_index(int64_t n) const { return n / count * per_step + in_step(n % count); }
};

}  // namespace lathe
