#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lathe {

double end_of_schedule(const ScheduleConfig& c, double lr) { return c.min_lr < 0 ? lr / 10 : c.min_lr; }

double learning_rate(const ScheduleConfig& c, double lr, int64_t step, int64_t steps) {
  if (step < c.warmup_steps) return lr * (static_cast<double>(step) + 1) / (static_cast<double>(c.warmup_steps) + 1);
  if (c.kind == "constant") return lr;
  const auto progress = [&](double from) {
    const double span = std::max(1.0, static_cast<double>(steps) - from);
    return std::clamp((static_cast<double>(step) - from) / span, 0.0, 1.0);
  };
  const double min_lr = end_of_schedule(c, lr);
  const auto warmup = static_cast<double>(c.warmup_steps);
  if (c.kind == "cosine") {
    return min_lr + 0.5 * (lr - min_lr) * (1 + std::cos(std::numbers::pi * progress(warmup)));
  }
  const double from =
      c.kind == "linear" ? warmup : std::max(warmup, std::floor(static_cast<double>(steps) * (1 - c.decay_share)));
  return lr + (min_lr - lr) * progress(from);
}

}  // namespace lathe
