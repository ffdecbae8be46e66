// Making a run fit: into a machine's memory, or onto GPUs that are not here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/run/forecast.h"

namespace lathe {

/// Bytes of memory that this process may still take: the machine's, or its control group's where
/// that is less.
int64_t free_memory();
/// "8GB", "500 MiB", "6.5e9": bytes. Exit::usage otherwise.
int64_t parse_bytes(const std::string& text);

/// What a run on the CPU will need and what there is, in one line; `enough` says whether it is.
struct ResourceNeeds {
  std::string text;
  bool enough = true;
};
/// From a dry run; call it before the run takes its memory.
ResourceNeeds resource_needs(const LoadedConfig& loaded, const RunData& data);

/// What to change so that a run stays within `bytes` resident: the largest micro-batch, with as
/// many of them as make the same global batch; where one sequence is too much, also bfloat16, then
/// recomputation, then an optimizer with less state. `path` and `given` are the config's. nullopt
/// where nothing does it. Empty where it fits as it is.
std::optional<Overrides> find_fit(const std::string& path, const Overrides& given,
                                  const Forecast& now, int64_t bytes);

/// What a maker publishes of a GPU.
struct Card {
  std::string name;
  double bf16_flops, tf32_flops;  ///< dense, a second
  double memory_bytes, bytes_per_second;
};
/// "H100" or "8xH100": a GPU and how many. Exit::usage with the names there are.
std::pair<Card, int64_t> parse_cards(const std::string& text);

}  // namespace lathe
