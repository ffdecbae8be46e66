// Determines which actions are due after a step. The actions depend only on the step and the
// config.
#pragma once

#include <cstdint>

#include "train/config/run_config.h"

namespace lathe {

/// The actions that are due after a step.
struct DueActions {
  bool last = false;        ///< whether the step is the run's last step
  bool log = false;         ///< whether to write a line to metrics.jsonl
  bool layers = false;      ///< whether to include statistics of each layer in that line
  bool histograms = false;  ///< whether to write histograms
  bool evaluate = false, sample = false, save = false;
  bool pause = false;  ///< whether to stop because of train.pause_at

  /// Returns whether the host needs the step's numbers. Reading them synchronizes a GPU.
  bool needs_results() const { return log || sample || save || evaluate; }
};

/// Returns the actions that are due once `step` steps are done.
inline DueActions due_after(int64_t step, const RunConfig& c) {
  const auto is_due = [&](int64_t every) { return every > 0 && step % every == 0; };
  const bool last = step == c.train.steps;

  return {.last = last,
          .log = last || is_due(c.train.log_interval),
          .layers = c.log.layers > 0 && is_due(c.train.log_interval) &&
                    step / c.train.log_interval % c.log.layers == 0,
          .histograms = is_due(c.log.histograms),
          .evaluate = c.train.eval_interval > 0 && (last || is_due(c.train.eval_interval)),
          .sample = is_due(c.train.sample_interval),
          .save = last || is_due(c.checkpoint.interval),
          .pause = step == c.train.pause_at};
}

}  // namespace lathe
