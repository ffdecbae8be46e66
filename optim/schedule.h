// Learning-rate schedules: pure functions of the step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"

namespace lathe {

/// Returns the allowed values of schedule.kind.
std::vector<std::string> schedule_names();

struct ScheduleConfig {
  LATHE_FIELD(std::string, kind, "cosine",
              "Learning rate schedule after the warm-up. wsd: constant, then a linear decay; "
              "one_cycle: a cosine up and a cosine down, without a warm-up; inverse_sqrt: "
              "proportional to 1 / sqrt(step); cosine_restarts: repeated cosine decays.",
              one_of(schedule_names()))
  LATHE_FIELD(int64_t, warmup_steps, 100,
              "Number of steps over which the learning rate rises linearly to optim.lr. one_cycle "
              "has none.",
              at_least(0))
  LATHE_FIELD(double, min_lr, -1.0,
              "Final learning rate (inverse_sqrt: lowest learning rate; constant: no effect). -1: "
              "a tenth of optim.lr.",
              at_least(-1))
  LATHE_FIELD(double, decay_share, 0.2, "share of the run in which the learning rate decays.",
              between(0, 1).of({"wsd"}))
  LATHE_FIELD(double, rise_share, 0.3, "share of the run in which the learning rate rises.",
              between(0, 1).of({"one_cycle"}))
  LATHE_FIELD(double, start_div, 25.0,
              "the learning rate starts at optim.lr divided by this number.",
              at_least(1).of({"one_cycle"}))
  LATHE_FIELD(double, power, 2.0, "exponent of the decay.", above(0, 100).of({"polynomial"}))
  LATHE_FIELD(int64_t, cycle_steps, 500, "number of steps in the first cycle.",
              at_least(1).of({"cosine_restarts"}))
  LATHE_FIELD(double, cycle_factor, 1.0, "length of each cycle as a multiple of the previous one.",
              between(1, 100).of({"cosine_restarts"}))
};

/// Returns the final learning rate of a schedule: min_lr, or a tenth of lr if min_lr is negative.
double end_of_schedule(const ScheduleConfig& config, double lr);

/// Returns the learning rate of a step, 0 <= step < steps. In the formulas, min_lr is
/// end_of_schedule(), and x is defined at `linear`.
///   warm-up          lr (step + 1) / (warmup + 1)
///   constant         lr
///   linear           lr + (min_lr - lr) x,  x = (step - warmup) / (steps - warmup)
///   cosine           min_lr + (lr - min_lr) (1 + cos(pi x)) / 2. Loshchilov and Hutter 2017
///   wsd              lr until the last decay_share of the steps, then linearly to min_lr. Hu et
///                    al. 2024
///   polynomial       min_lr + (lr - min_lr) (1 - x)^power
///   inverse_sqrt     lr sqrt((warmup + 1) / (step + 1)), at least min_lr. Vaswani et al. 2017
///   cosine_restarts  cosine within each cycle; cycle i has cycle_steps cycle_factor^i steps.
///                    Loshchilov and Hutter 2017
///   one_cycle        from lr / start_div to lr by half a cosine over the first rise_share of the
///                    steps, then to min_lr by another half. Smith and Topin 2019; in torch's
///                    OneCycleLR, both parts end one step earlier
double learning_rate(const ScheduleConfig& config, double lr, int64_t step, int64_t steps);

}  // namespace lathe
