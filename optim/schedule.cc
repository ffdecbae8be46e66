#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lathe {
namespace {

/// The inputs of a schedule at one step.
struct Place {
  const ScheduleConfig& config;
  double lr, min_lr, step, steps, warmup;

  /// Returns how much of the way from step `from` to step `to` is done, in [0, 1].
  double progress(double from, double to) const {
    return std::clamp((step - from) / std::max(1.0, to - from), 0.0, 1.0);
  }
};

double linear(double from, double to, double x) { return from + (to - from) * x; }
double cosine(double from, double to, double x) {
  return to + 0.5 * (from - to) * (1 + std::cos(std::numbers::pi * x));
}

struct ScheduleKind {
  const char* name;
  double (*rate)(const Place& p);
  bool warms_up = true;
};

double wsd(const Place& p) {
  // The addend makes up for the rounding of a share such as 0.8, which is not exact in binary.
  const double steady = p.steps * (1 - p.config.decay_share) + 1e-12 * p.steps;
  const double from = std::max(p.warmup, std::floor(steady));
  return linear(p.lr, p.min_lr, p.progress(from, p.steps));
}

double cosine_restarts(const Place& p) {
  const double factor = p.config.cycle_factor, first = static_cast<double>(p.config.cycle_steps);
  double begin = p.warmup, length = first;
  if (factor == 1) {
    begin += std::floor((p.step - begin) / first) * first;
  } else {
    while (p.step >= begin + length) {
      begin += length;
      length *= factor;
    }
  }
  return cosine(p.lr, p.min_lr, (p.step - begin) / length);
}

double one_cycle(const Place& p) {
  const double top = p.steps * p.config.rise_share;
  if (p.step < top) return cosine(p.lr / p.config.start_div, p.lr, p.step / top);
  return cosine(p.lr, p.min_lr, p.progress(top, p.steps));
}

// columns: name, rate, warms_up
constexpr ScheduleKind kinds[]{
    {"constant", [](const Place& p) { return p.lr; }},
    {"linear",
     [](const Place& p) { return linear(p.lr, p.min_lr, p.progress(p.warmup, p.steps)); }},
    {"cosine",
     [](const Place& p) { return cosine(p.lr, p.min_lr, p.progress(p.warmup, p.steps)); }},
    {"wsd", wsd},
    {"polynomial",
     [](const Place& p) {
       return linear(p.min_lr, p.lr, std::pow(1 - p.progress(p.warmup, p.steps), p.config.power));
     }},
    {"inverse_sqrt",
     [](const Place& p) {
       return std::max(p.min_lr, p.lr * std::sqrt((p.warmup + 1) / (p.step + 1)));
     }},
    {"cosine_restarts", cosine_restarts},
    {"one_cycle", one_cycle, false},
};

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : kinds) names.emplace_back(kind.name);
  return names;
}

double end_of_schedule(const ScheduleConfig& c, double lr) {
  return c.min_lr < 0 ? lr / 10 : c.min_lr;
}

double learning_rate(const ScheduleConfig& c, double lr, int64_t step, int64_t steps) {
  const auto& kind = *std::find_if(std::begin(kinds), std::end(kinds),
                                   [&](const auto& k) { return c.kind == k.name; });
  if (kind.warms_up && step < c.warmup_steps)
    return lr * (static_cast<double>(step) + 1) / (static_cast<double>(c.warmup_steps) + 1);
  return kind.rate({.config = c,
                    .lr = lr,
                    .min_lr = end_of_schedule(c, lr),
                    .step = static_cast<double>(step),
                    .steps = static_cast<double>(steps),
                    .warmup = static_cast<double>(c.warmup_steps)});
}

}  // namespace lathe
