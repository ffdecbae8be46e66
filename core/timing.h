// Measuring time, on a clock that never goes back.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace lathe {

/// Monotonic.
using Clock = std::chrono::steady_clock;

/// From `begin` to now.
inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The upper one of the two in the middle where their number is even; `values` is not empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lathe
