// Declares functions that measure time with a monotonic clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace lathe {

/// A monotonic clock.
using Clock = std::chrono::steady_clock;

/// Returns the seconds from `begin` to now.
inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Converts seconds to a duration in whole milliseconds, rounded towards zero.
inline std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(1e3 * seconds));
}

/// Returns the median of `values`. For an even number of values, this is the larger of the two
/// middle values. `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lathe
