// Which micro-batches a process computes.
#pragma once

#include <cstdint>

namespace lathe {

/// A step has `per_step` micro-batches, numbered through all steps; this process computes the
/// `count` of each step that begin with its `first` one.
struct BatchPlan {
  int64_t per_step = 1, first = 0, count = 1;

  /// Returns the number, among the micro-batches of all steps, of the n-th one of this process.
  int64_t global_index(int64_t n) const { return n / count * per_step + first + n % count; }
};

}  // namespace lathe
