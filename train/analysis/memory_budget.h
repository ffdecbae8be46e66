// memory.budget: as little recomputation as a run needs to stay within its memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/config/run_config.h"

namespace lathe {

/// A config without memory.budget, and a line about the choice; "" if the config had no budget.
struct BudgetedConfig {
  LoadedConfig loaded;
  std::string text;
};

/// Replaces memory.budget by the cheapest value of memory.recompute that keeps the resident
/// memory of a run within it, by dry runs: no blocks, then the first 1, 2, ... of them up to a
/// third, then "selective", then more of them, then all, then groups ("sqrt"). Changes no bit of
/// the run. Returns a config without budget unchanged. Throws Exit::memory if no value is enough,
/// and Exit::usage if the budget is not an amount of memory, if the run is on a GPU, or if it has
/// several processes. Call it before the run takes its memory.
///
/// `ranks`: the number of processes of the run. `program_bytes`: what the process takes without
/// the run, if it was measured earlier.
BudgetedConfig apply_memory_budget(LoadedConfig loaded, int64_t ranks = 1,
                                   std::optional<int64_t> program_bytes = std::nullopt);

}  // namespace lathe
