// Defines which micro-batches of a step a process computes.
#pragma once

#include <cstdint>

namespace lathe {

/// The micro-batches of one process. All processes together compute `per_step` micro-batches in a
/// step. This process computes `count` of them: the one with index `first`, then every `stride`-th.
struct BatchPlan {
  int64_t per_step = 1, first = 0, count = 1, stride = 1;
  /// Sum the gradients of micro-batches one after another instead of in the order of
  /// core/tree_sum.h (train.sum_order = sequence).
  bool in_sequence = false;

  /// Returns the index within a step of the n-th micro-batch (from 0) that this process computes in
  /// that step.
  int64_t in_step(int64_t n) const { return first + n * stride; }
  /// Returns the index among all micro-batches of all steps of the n-th micro-batch (from 0) that
  /// this process computes in the run.
  int64_t global_index(int64_t n) const { return n / count * per_step + in_step(n % count); }
};

}  // namespace lathe
