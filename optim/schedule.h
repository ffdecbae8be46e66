// Learning-rate schedules: pure functions of the step.
#pragma once

#include <cstdint>
#include <string>

#include "core/config.h"

namespace lathe {

struct ScheduleConfig {
  LATHE_FIELD(std::string, kind, "cosine",
              "course of the learning rate after warm-up; wsd: constant, then down linearly",
              one_of({"constant", "linear", "cosine", "wsd"}))
  LATHE_FIELD(int64_t, warmup_steps, 100, "steps over which it rises to optim.lr", at_least(0))
  LATHE_FIELD(double, min_lr, -1.0, "where it ends (not for constant); -1: at a tenth of optim.lr", at_least(-1))
  LATHE_FIELD(double, decay_share, 0.2, "wsd: share of the run spent going down", between(0, 1))
};

/// Where the schedule ends: min_lr, or a tenth of lr where that is -1.
double end_of_schedule(const ScheduleConfig& config, double lr);

/// The learning rate of step 0 <= step < steps, with min_lr = end_of_schedule().
///   warm-up   lr (step + 1) / (warmup + 1)
///   linear    lr + (min_lr - lr) x,  x = (step - warmup) / (steps - warmup)
///   cosine    min_lr + (lr - min_lr) (1 + cos(pi x)) / 2. Loshchilov and Hutter 2017
///   wsd       lr until the last decay_share of the steps, then linearly to min_lr. Hu et al. 2024
double learning_rate(const ScheduleConfig& config, double lr, int64_t step, int64_t steps);

}  // namespace lathe
