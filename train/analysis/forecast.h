// Forecasts what a run will need before it starts: its memory from a dry run of the training code,
// its time from measured steps of a scaled-down config that is small enough to run here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "train/analysis/dry_step.h"
#include "train/config/run_config.h"

namespace lathe {

/// Seconds of the parts of an optimizer step, summed over its micro-batches.
struct StepTimes {
  double forward = 0, backward = 0, optimizer = 0;
  double total() const { return forward + backward + optimizer; }
};

/// Returns the times of a step of `config`, whose dry run is `dry`. They are scaled from
/// `measured`, the times of a step of one micro-batch of a scaled-down config, whose dry run is
/// `small`. The time of a micro-batch is assumed to be proportional to its FLOPs. The time of an
/// update is assumed to be proportional to the FLOPs of its matrix products, or, if it has none, to
/// the number of trained parameters.
StepTimes times_of_step(const RunConfig& config, const DryStep& dry, const StepTimes& measured,
                        const DryStep& small);

/// The memory, time and disk space that a run will need.
struct Forecast {
  DryStep dry{};
  StepTimes times{};
  bool is_measured = false;      ///< false: `times` are those of a smaller model, scaled by FLOPs
  int64_t program_bytes = 0;     ///< resident memory beside tensors, such as libraries and threads
  int64_t kept_checkpoints = 0;  ///< in the run's folder at the end of the run
  /// Returns the peak resident memory of the process.
  int64_t peak_rss() const { return program_bytes + dry.resident(); }
};

/// Returns how many checkpoints a run of this config leaves in its folder.
int64_t kept_checkpoints(const RunConfig& config);

/// Forecasts one of `ranks` processes of a run on CPUs like this machine's. Assumes that each
/// process has a machine of its own. Times exclude communication. The forecast itself takes less
/// than 2 GB and 20 s for any config.
Forecast forecast(const LoadedConfig& loaded, int ranks = 1);

}  // namespace lathe
