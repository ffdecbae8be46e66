// Forecasts what a run will need before it starts: memory from a dry run of its own code, time from
// a version of it that is small enough to run here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/flops.h"
#include "core/memory.h"
#include "dist/placement.h"
#include "train/config/run_config.h"

namespace lathe {

struct RunData;

/// The memory and the work of two steps of a config, from a dry run (core/dry_run.h).
struct DryStep {
  int64_t parameters = 0, trained = 0;  ///< elements
  MemoryStats made{};                   ///< after the model and the optimizer are made
  MemoryStats peaks{};                  ///< during the steps
  FlopCount micro_batch{};              ///< FLOPs of one micro-batch, in one process
  FlopCount whole_micro_batch{};        ///< FLOPs of one micro-batch, in all processes of a replica
  double formula_flops = 0;             ///< FLOPs of a micro-batch by the model's own formula
  double update_flops = 0;              ///< FLOPs of the matrix products of an optimizer update
  int64_t checkpoint_bytes = 0;
  int ranks = 1;              ///< processes; the numbers are those of one of them
  GridSizes replica{};        ///< how many of them hold a replica of the model together
  int stage = 0;              ///< of the pipeline, that the numbers are those of
  double update_share = 1;    ///< of the trained parameters, that one process updates
  int64_t sent_bytes = 0;     ///< that this process sends to the others in a step
  int64_t held_bytes = 0;     ///< size of the copy that a background save writes
  int64_t scratch_bytes = 0;  ///< disk that memory.offload takes; read and written in each step
  int64_t mapped_bytes = 0;   ///< resident of parameters that memory.offload keeps on the disk
  bool has_copies = false;    ///< weights have working copies in the matmul dtype
  int64_t blocks = 0;         ///< repeated blocks of the model with trained parameters
  std::string unit{};         ///< what throughput counts: "tokens" or "samples"
  int data_ranks() const { return ranks / replica.replica(); }
  /// Returns the peak resident memory of the run, without that of the program.
  int64_t resident() const { return peaks.touched_peak + held_bytes + mapped_bytes; }
};

/// Runs two steps of the config without their memory and their arithmetic, as one of `ranks`
/// processes. Of the stages of a pipeline, the result has the memory of the one that needs the
/// most, and the FLOPs, the updates and the bytes of those that have the most. The folder of the
/// data may be missing for a model of tokens whose vocab_size is given. Throws with the exit codes
/// of the run.
DryStep dry_step(const LoadedConfig& loaded, int ranks = 1);
/// Does the same with data that is already open, for the config that RunData::open has completed.
DryStep dry_step(const LoadedConfig& loaded, const RunData& data, int ranks = 1);
/// Returns about how much this process will have resident beside its tensors once it trains.
int64_t process_overhead_bytes();

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

/// Forecasts a run on CPUs like this machine's: one of `ranks` processes, each on a machine of its
/// own; times are without the exchange. Takes less than 2 GB and 20 s for any config.
Forecast forecast(const LoadedConfig& loaded, int ranks = 1);

}  // namespace lathe
