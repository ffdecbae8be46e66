#include "train/analysis/memory_budget.h"

#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "core/io/text.h"
#include "train/analysis/fit.h"
#include "train/analysis/forecast.h"

namespace lathe {
namespace {

/// Returns the value of memory.recompute for the first `count` of `all` blocks.
std::string first_blocks(int64_t count, int64_t all) {
  if (count == 0) return "none";
  return count == all ? "blocks" : str("blocks.0-", count - 1);
}

}  // namespace

BudgetedConfig apply_memory_budget(LoadedConfig loaded, int64_t ranks,
                                   std::optional<int64_t> program_bytes) {
  MemoryConfig& memory = loaded.config.memory;
  if (memory.budget.empty()) return {std::move(loaded), ""};
  const std::string where = origin_of(loaded, "memory.budget") + ": memory.budget";
  if (open_device(loaded.config.train.device) != "cpu" || ranks > 1) {
    fail(Exit::usage, where,
         " supports only one process on a CPU; leave it out and set memory.recompute");
  }

  const int64_t budget = parse_bytes(memory.budget, where);
  const int64_t program = program_bytes ? *program_bytes : process_overhead_bytes();
  DryStep last;
  const auto needed = [&](const std::string& policy) {
    memory.recompute = policy;
    last = dry_step(loaded);
    return last.resident() + program;
  };

  // Recomputing fewer blocks takes less time, and recomputing one more takes less memory. Selective
  // recomputation of all blocks takes as long as full recomputation of about a third of them, and
  // saves about half of the memory.
  int64_t enough = 0, bytes = needed("none");
  const int64_t blocks = last.blocks;
  if (bytes > budget && blocks > 0) {
    int64_t too_few = 0;
    enough = blocks;
    bytes = needed("blocks");
    while (bytes <= budget && enough - too_few > 1) {
      const int64_t middle = (too_few + enough) / 2;
      const bool fits = needed(first_blocks(middle, blocks)) <= budget;
      (fits ? enough : too_few) = middle;
    }
    if (bytes <= budget) bytes = needed(first_blocks(enough, blocks));
    if (bytes <= budget && 3 * enough > blocks) {
      const int64_t selective = needed("selective");
      if (selective <= budget)
        bytes = selective;
      else
        memory.recompute = first_blocks(enough, blocks);
    }
  }

  if (bytes > budget && blocks > 0) bytes = needed("sqrt");
  if (bytes > budget) {
    fail(Exit::memory, where, " = \"", memory.budget, "\" is not enough: the run needs ",
         format("%.0f MB", static_cast<double>(bytes) / 1e6),
         blocks > 0 ? " with all of its blocks recomputed" : ", and its model has no blocks",
         "; `lathe plan CONFIG --fit ", memory.budget, "` prints what else to change");
  }

  // The run's config records the choice and not the budget, so that the saved config gives the same
  // run again.
  const std::string given = std::exchange(memory.budget, "");
  std::string choice = "no block is recomputed";
  if (memory.recompute == "selective")
    choice = "blocks are recomputed in part (memory.recompute = \"selective\")";
  else if (memory.recompute == "sqrt")
    choice = "groups of blocks are recomputed (memory.recompute = \"sqrt\")";
  else if (enough > 0)
    choice = str(enough, " of ", blocks, " blocks are recomputed");
  return {std::move(loaded), str("budget    ", given, ": ", choice, ", about ",
                                 format("%.2f GB", static_cast<double>(bytes) / 1e9))};
}

}  // namespace lathe
