// Forecasts the needs of a run before it starts. The memory comes from a dry run of the training
// code. The time comes from measured steps of a scaled-down config that is small enough to run
// here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "train/analysis/dry_step.h"
#include "train/config/run_config.h"

namespace lathe {

/// Times of the parts of an optimizer step in seconds, summed over its micro-batches.
struct StepTimes {
  double forward = 0, backward = 0, optimizer = 0;
  double total() const { return forward + backward + optimizer; }
};

/// Returns the times of a step of `config`, whose dry run is `dry`. `measured` are the times of a
/// step of one micro-batch of a scaled-down config, and `small` is the dry run of that config.
/// Scales the time of a micro-batch in proportion to its FLOPs. Scales the time of an update in
/// proportion to the FLOPs of its matrix products, or to the number of trained parameters if it has
/// no matrix products.
StepTimes times_of_step(const RunConfig& config, const DryStep& dry, const StepTimes& measured,
                        const DryStep& small);

/// The memory, time and disk space that a run will need.
struct Forecast {
  DryStep dry{};
  StepTimes times{};
  bool is_measured = false;      ///< whether the config itself was measured, not a smaller version
  int64_t program_bytes = 0;     ///< resident memory besides tensors, such as libraries and threads
  int64_t kept_checkpoints = 0;  ///< number of checkpoints in the run's folder at the end
  /// Returns the peak resident memory of the process.
  int64_t peak_rss() const { return program_bytes + dry.resident(); }
};

/// Returns how many checkpoints a run of this config leaves in its folder when it ends.
int64_t kept_checkpoints(const RunConfig& config);

/// Forecasts the needs of one of `ranks` processes of a run on CPUs like this machine's. Assumes
/// that each process runs on a separate machine. The times exclude communication. For any config,
/// the forecast itself takes less than 2 GB and 20 s.
Forecast forecast(const LoadedConfig& loaded, int ranks = 1);

}  // namespace lathe
