#include "optim/spikes.h"

#include <algorithm>
#include <cmath>

namespace lathe {

bool SpikeGuard::is_spike(double loss) {
  constexpr int64_t needed = 50, most_in_row = 10;
  constexpr double weight_of_late = 0.02;
  SpikeState& s = state_;
  if (s.seen >= needed && loss > s.mean + sigma_ * std::sqrt(s.variance)) {
    if (s.skipped_in_row < most_in_row) {
      ++s.skipped;
      ++s.skipped_in_row;
      return true;
    }
    // After most_in_row spikes in a row, accept the new level of the loss.
    s.seen = 0;
    s.mean = 0;
    s.variance = 0;
  }
  s.skipped_in_row = 0;
  const double weight = std::max(weight_of_late, 1 / static_cast<double>(++s.seen)),
               off = loss - s.mean;
  s.mean += weight * off;
  s.variance = (1 - weight) * (s.variance + weight * off * off);
  return false;
}

}  // namespace lathe
