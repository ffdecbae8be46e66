// Fits a run into the memory of a machine, and describes GPUs that this machine does not have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/analysis/forecast.h"

namespace lathe {

/// Loads a config with the overrides `given` and `more`. If both set a key, `more` has precedence.
/// Resolves train.init_from and adapters.base, which set keys of [model].
LoadedConfig load_with(const std::string& path, const Overrides& given, const Overrides& more);

/// The memory and disk space that a run on CPUs needs, compared to those that the machine has. If
/// the run uses several machines, `text` describes the one where memory is scarcest.
struct ResourceNeeds {
  std::string text;    ///< one line, the same on all processes
  bool enough = true;  ///< whether the memory and the disk space are enough
  /// Even one and a half times the free memory would not be enough, or the disk has no room for the
  /// scratch files.
  bool must_not_start = false;
};
/// Determines the needs by a dry run. Call it before the run allocates its memory. A collective of
/// the run's processes.
ResourceNeeds resource_needs(const LoadedConfig& loaded, const RunData& data);

/// Returns the overrides with which each process of a run, on as many processes as `now`, stays
/// within `bytes` of resident memory. They set the largest micro-batch that fits, and the number of
/// micro-batches that keeps the global batch. If even one sequence does not fit, they also change
/// as few keys as possible of dist.shard, the precision, recomputation, the optimizer,
/// train.sum_order and others, and memory.offload last. `path` and `given` are the config's file
/// and its overrides. Returns no overrides if the run fits as it is, and nullopt if no combination
/// is enough.
std::optional<Overrides> find_fit(const std::string& path, const Overrides& given,
                                  const Forecast& now, int64_t bytes);

/// A GPU as its maker's data sheet describes it.
struct GpuSpec {
  std::string name;
  double bf16_flops, tf32_flops;  ///< dense, per second
  double memory_bytes, bytes_per_second;
};
/// Parses "H100" or "8xH100" into a GPU and a count. Throws Exit::usage, with the known names, for
/// any other text.
std::pair<GpuSpec, int64_t> parse_gpus(const std::string& text);

}  // namespace lathe
