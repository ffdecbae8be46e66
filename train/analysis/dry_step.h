// A step without its memory and arithmetic: what it will need (core/dry_run.h).
#pragma once

#include <cstdint>
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
  MemoryStats peaks{};                  ///< during the steps and evaluations
  FlopCount micro_batch{};              ///< FLOPs of one micro-batch, in one process
  FlopCount whole_micro_batch{};        ///< FLOPs of one micro-batch, in all processes of a replica
  double formula_flops = 0;             ///< FLOPs of a micro-batch by the model's own formula
  double update_flops = 0;              ///< FLOPs of the matrix products of an optimizer update
  int64_t checkpoint_bytes = 0;
  int ranks = 1;          ///< processes; the numbers are those of one of them
  GridSizes replica{};    ///< how many of them hold a replica of the model together
  int stage = 0;          ///< of the pipeline, that the numbers are those of
  int largest_owner = 0;  ///< the data rank of the stage that updates the most parameters
  /// Micro-batches for whose time a stage of the pipeline waits in a step.
  double bubble = 0;
  double update_share = 1;    ///< of the trained parameters, that one process updates
  int64_t sent_bytes = 0;     ///< that the process that sends the most sends in a step
  int64_t held_bytes = 0;     ///< size of the copy that a background save writes
  int64_t scratch_bytes = 0;  ///< disk that memory.offload takes; read and written in each step
  int64_t mapped_bytes = 0;   ///< resident of parameters that memory.offload keeps on the disk
  bool has_copies = false;    ///< weights have working copies in the matmul dtype
  int64_t blocks = 0;         ///< repeated blocks of the model with trained parameters
  std::string unit{};         ///< what throughput counts: "tokens" or "samples"
  int data_ranks() const { return ranks / replica.replica(); }
  /// Returns the peak memory of tensors, with the copy of a background save.
  int64_t tensors() const { return peaks.total_peak + held_bytes; }
  /// Returns the peak resident memory of the run, without that of the program.
  int64_t resident() const { return peaks.touched_peak + held_bytes + mapped_bytes; }
};

/// Runs two steps of the config without their memory and their arithmetic, as one of `ranks`
/// processes, and an evaluation before and after them if the run evaluates. The result has the
/// memory of the process that needs the most, and the FLOPs, the updates and the bytes of those
/// that have the most. The folder of the data may be missing for a model of
/// tokens whose vocab_size is given. Throws with the exit codes of the run.
DryStep dry_step(const LoadedConfig& loaded, int ranks = 1);
/// Does the same with data that is already open, for the config that RunData::open has completed.
DryStep dry_step(const LoadedConfig& loaded, const RunData& data, int ranks = 1);
/// Does the same as this process, which may be one of several.
DryStep dry_step_of_this_process(const LoadedConfig& loaded, const RunData& data);
/// Returns about how much this process will have resident beside its tensors once it trains.
int64_t process_overhead_bytes();

}  // namespace lathe
