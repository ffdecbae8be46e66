// Finds settings with which a run fits into the memory of a machine. Also looks up the data-sheet
// numbers of GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/analysis/forecast.h"

namespace lathe {

/// Loads a config with the overrides `given` and `more`. If both set a key, `more` has precedence.
/// Resolves train.init_from and adapters.base, because the runs that these keys name determine keys
/// of [model].
LoadedConfig load_with(const std::string& path, const Overrides& given, const Overrides& more);

/// The memory and disk space that a run on CPUs needs, compared with what the machine has. If the
/// run uses several machines, `text` describes the machine where memory is scarcest.
struct ResourceNeeds {
  std::string text;    ///< one line, the same on all processes
  bool enough = true;  ///< whether the memory and the disk space are enough
  /// Whether the run surely fails: even one and a half times the free memory would not be enough,
  /// or the disk has too little space for the scratch files.
  bool must_not_start = false;
};
/// Determines the needs with a dry run. Must be called by all processes of the run, before the run
/// allocates its memory.
ResourceNeeds resource_needs(const LoadedConfig& loaded, const RunData& data);

/// Returns config overrides with which each process stays within `bytes` of resident memory. `now`
/// is the forecast without these overrides; the number of processes stays the same. The overrides
/// set the largest micro-batch that fits, and the number of micro-batches that keeps the global
/// batch. If even one sequence does not fit, the overrides also change dist.shard, the precision,
/// recomputation, the optimizer, train.sum_order or others, in the combination that costs the least
/// time. They change memory.offload only if no other combination is enough. `path` is the config's
/// file, and `given` are the overrides that the user gave. Returns an empty list if the run fits
/// without changes, and nullopt if no combination is enough.
std::optional<Overrides> find_fit(const std::string& path, const Overrides& given,
                                  const Forecast& now, int64_t bytes);

/// A GPU with the numbers of its maker's data sheet.
struct GpuSpec {
  std::string name;
  double bf16_flops, tf32_flops;  ///< dense peak rates in FLOPs per second
  double memory_bytes, bytes_per_second;
};
/// Parses "H100" or "8xH100" into a GPU and a count. For any other text, throws Exit::usage with
/// the known names.
std::pair<GpuSpec, int64_t> parse_gpus(const std::string& text);

}  // namespace lathe
