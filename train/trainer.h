// The training loop.
#pragma once

#include "train/run_config.h"

namespace lathe {

/// Trains, or goes on with, the run that the config describes. Returns Exit::done, or Exit::stopped where a signal or
/// the time limit ended it with a checkpoint written; everything else is thrown.
Exit train(LoadedConfig loaded);

struct BenchResult {
  double ms_median = 0, ms_min = 0, tokens_per_s = 0, first_step_s = 0, peak_rss_mb = 0, final_loss = 0;
  int64_t parameters = 0;
};
/// Trains train.steps steps without evaluation, checkpoints or a run folder; times are of the steps after `skip`.
BenchResult bench_steps(LoadedConfig loaded, int64_t skip);

}  // namespace lathe
