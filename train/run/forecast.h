// What a run will need, before it is started: memory from a dry run of its own code, time from a
// version of it that is small enough to run here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/flops.h"
#include "core/memory.h"
#include "train/config/run_config.h"

namespace lathe {

struct RunData;

/// What two steps of a config took in a dry run (core/dry_run.h).
struct DryStep {
  int64_t parameters = 0, trained = 0;  ///< elements
  MemoryStats made{};                   ///< once model and optimizer are there
  MemoryStats peaks{};                  ///< of the steps
  FlopCount micro_batch{};              ///< FLOPs of one
  double formula_flops = 0;             ///< of a micro-batch, by the model's own formula
  double update_flops = 0;              ///< of the matrix products of an optimizer's update
  int64_t checkpoint_bytes = 0;
  int64_t held_bytes = 0;   ///< the copy of a checkpoint that is written in the background
  bool has_copies = false;  ///< weights have working copies in the matmul dtype
  std::string unit{};       ///< what throughput counts: "tokens" or "samples"
  /// Of the run's memory what is resident at the highest, beside the program.
  int64_t resident() const { return peaks.touched_peak + held_bytes; }
};

/// Runs two steps of the config without their memory and their arithmetic; the data's folder need
/// not be there for a model of tokens whose vocab_size is given. Exit codes as the run's.
DryStep dry_step(const LoadedConfig& loaded);
/// The same with the data opened before, for what RunData::open made of the config.
DryStep dry_step(const LoadedConfig& loaded, const RunData& data);
/// About what this process will have resident beside its tensors once it trains.
int64_t process_overhead_bytes();

/// Seconds of the parts of an optimizer step, all its micro-batches together.
struct StepTimes {
  double forward = 0, backward = 0, optimizer = 0;
  double total() const { return forward + backward + optimizer; }
};

/// Scales the times of a step of one micro-batch, `measured` with a version whose dry run is
/// `small`, to a step of `config`, whose dry run is `dry`: each micro-batch takes time in
/// proportion to its FLOPs, an update in proportion to its matrix products, or to the parameters
/// that it trains where it has none.
StepTimes times_of_step(const RunConfig& config, const DryStep& dry, const StepTimes& measured,
                        const DryStep& small);

/// What a run will need.
struct Forecast {
  DryStep dry{};
  StepTimes times{};
  bool is_measured =
      false;  ///< times are the config's own; else those of a smaller version, by FLOPs
  int64_t program_bytes = 0;  ///< resident beside tensors: libraries, threads, what libraries keep
  int64_t kept_checkpoints = 0;  ///< in the run's folder at its end
  /// Resident memory of the process at its highest.
  int64_t peak_rss() const { return program_bytes + dry.resident(); }
};

/// Checkpoints in the folder of a run of this config once it ended.
int64_t kept_checkpoints(const RunConfig& config);

/// Forecasts a run on this machine's CPU. Takes less than 2 GB and 20 s whatever the config is.
Forecast forecast(const LoadedConfig& loaded);

}  // namespace lathe
