// Implements memory.budget: chooses the least recomputation with which a run stays within this
// amount of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/config/run_config.h"

namespace lathe {

/// A config without memory.budget, and a line that reports the chosen recomputation. The line is
/// empty if the config had no budget.
struct BudgetedConfig {
  LoadedConfig loaded;
  std::string text;
};

/// Replaces memory.budget by the cheapest value of memory.recompute with which the resident memory
/// of the run stays within the budget. Dry runs measure the memory. In ascending order of cost, the
/// values are: recompute no block; the first 1, 2, ... blocks, up to a third of all blocks;
/// "selective"; more than a third of the blocks; all blocks; groups of blocks ("sqrt"). The choice
/// changes no bit of the run's results. Returns a config without a budget unchanged. Throws
/// Exit::memory if no value is enough. Throws Exit::usage if the budget is not an amount of memory
/// or if the run is on a GPU. Must be called before the run allocates its memory.
///
/// The budget applies to each process separately, but all processes of a run choose the same value,
/// so all of them must call this function. `ranks`: the number of processes of the run.
/// `program_bytes`: the resident memory of the process besides the run's tensors, if it was
/// measured earlier.
BudgetedConfig apply_memory_budget(LoadedConfig loaded, int ranks = 1,
                                   std::optional<int64_t> program_bytes = std::nullopt);

}  // namespace lathe
