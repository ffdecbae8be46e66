// Forecasts what a run will need before it starts: memory from a dry run of its own code, time from
// a version of it that is small enough to run here.
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

/// Scales the times of a step of one micro-batch, `measured` with a version whose dry run is
/// `small`, to a step of `config`, whose dry run is `dry`. A micro-batch takes time in proportion
/// to its FLOPs. An update takes time in proportion to its matrix products, or, where it has none,
/// to the parameters that it trains.
StepTimes times_of_step(const RunConfig& config, const DryStep& dry, const StepTimes& measured,
                        const DryStep& small);

/// The memory, time and disk space that a run will need.
struct Forecast {
  DryStep dry{};
  StepTimes times{};
  bool is_measured = false;      ///< false: `times` are those of a smaller version, scaled by FLOPs
  int64_t program_bytes = 0;     ///< resident beside tensors: libraries with their caches, threads
  int64_t kept_checkpoints = 0;  ///< in the run's folder at the end of the run
  /// Returns the peak resident memory of the process.
  int64_t peak_rss() const { return program_bytes + dry.resident(); }
};

/// Returns how many checkpoints a run of this config leaves in its folder.
int64_t kept_checkpoints(const RunConfig& config);

/// Forecasts one of `ranks` processes of a run on CPUs like this machine's. Each process is on a
/// machine of its own, and times exclude communication. Takes less than 2 GB and 20 s for any
/// config.
Forecast forecast(const LoadedConfig& loaded, int ranks = 1);

}  // namespace lathe
