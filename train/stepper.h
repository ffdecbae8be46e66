// One optimizer step: batches in, updated parameters out. Shared by training, benchmarks and plans.
#pragma once

#include <cstdint>

#include "data/loader.h"
#include "train/session.h"

namespace lathe {

struct StepResult {
  double loss = 0;       ///< mean over the step's targets
  double grad_norm = 0;  ///< before clipping
  double lr = 0;
  double data_wait_s = 0;
};

/// Runs step `step` (from 0) of the session's config. Gradients that are not finite are Exit::diverged, before any
/// parameter changed.
StepResult run_step(Session& session, Loader& loader, int64_t step);

/// Seconds since this process was started.
double process_age();

}  // namespace lathe
