// Forecasts the memory and the work of a step by a dry run, which allocates no tensor memory and
// does no arithmetic (core/dry_run.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/flops.h"
#include "core/memory.h"
#include "dist/placement.h"
#include "train/config/run_config.h"

namespace lathe {

struct RunData;

/// The work and the memory of one stage of a pipeline.
struct StageForecast {
  int64_t blocks = 0;          ///< number of blocks
  double flops = 0;            ///< FLOPs of one micro-batch
  int64_t resident_bytes = 0;  ///< largest DryStep::resident() of the stage's processes
};

/// The memory and the work of two steps of a config, from a dry run (core/dry_run.h).
struct DryStep {
  int64_t parameters = 0, trained = 0;  ///< numbers of elements
  MemoryStats made{};                   ///< memory after the model and the optimizer are created
  MemoryStats peaks{};                  ///< peak memory during the steps and evaluations
  FlopCount micro_batch{};              ///< FLOPs of one micro-batch, in one process
  FlopCount whole_micro_batch{};        ///< FLOPs of one micro-batch, in all processes of a replica
  double formula_flops = 0;             ///< FLOPs of a micro-batch by the model's own formula
  double update_flops = 0;              ///< FLOPs of the matrix products of an optimizer update
  int64_t checkpoint_bytes = 0;
  int ranks = 1;          ///< number of processes; the memory fields describe one of them
  GridSizes replica{};    ///< the processes that hold one replica of the model together
  int stage = 0;          ///< pipeline stage of the process whose memory is given
  int largest_owner = 0;  ///< in this stage, the data rank that updates the most parameters
  std::vector<StageForecast> stages{};  ///< the stages of the pipeline; empty without a pipeline
  /// Idle time of a pipeline stage in a step, as a multiple of the time of one micro-batch.
  double bubble = 0;
  /// Largest fraction of the trained parameters that one process updates.
  double update_share = 1;
  int64_t sent_bytes = 0;       ///< largest number of bytes that a process sends in a step
  int64_t save_copy_bytes = 0;  ///< bytes of the tensor copies that a background save makes
  /// Bytes of the files of memory.offload, which each step reads and writes.
  int64_t scratch_bytes = 0;
  int64_t mapped_bytes = 0;  ///< resident bytes of parameters that memory.offload maps from disk
  bool has_copies = false;   ///< whether weights have working copies in the matmul dtype
  /// Number of repeated blocks of the model, up to the last one that has trained parameters.
  int64_t blocks = 0;
  int64_t own_blocks = 0;  ///< number of blocks of this process's pipeline stage
  std::string unit{};      ///< what throughput counts: "tokens" or "samples"
  /// Returns the number of replicas of the model.
  int data_ranks() const { return ranks / replica.replica(); }
  /// Returns the peak memory of tensors, including the copies of a background save.
  int64_t tensors() const { return peaks.total_peak + save_copy_bytes; }
  /// Returns the peak resident memory of the process, without process_overhead_bytes().
  int64_t resident() const { return peaks.touched_peak + save_copy_bytes + mapped_bytes; }
};

/// Runs two dry steps of a run of `ranks` processes with this config. If the run evaluates, also
/// runs an evaluation before and after the steps. The result has the memory of the process with the
/// highest peak. The result's FLOPs, update share and bytes sent are maxima over all processes. The
/// data folder of a token model may be missing if model.vocab_size is given. Throws the errors that
/// the run itself would throw.
DryStep dry_step(const LoadedConfig& loaded, int ranks = 1);
/// Runs the same dry steps with data that is already open. `loaded` is a config that
/// RunData::open() has completed.
DryStep dry_step(const LoadedConfig& loaded, const RunData& data, int ranks = 1);
/// Runs the dry steps only for the position of this process in the grid of the run's processes.
DryStep dry_step_of_this_process(const LoadedConfig& loaded, const RunData& data);
/// Returns an estimate of the resident bytes that this process will need during training, in
/// addition to its tensors.
int64_t process_overhead_bytes();

}  // namespace lathe
