#include "train/analysis/memory_budget.h"

#include <ATen/ops/full.h>

#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "core/io/text.h"
#include "dist/world.h"
#include "train/analysis/fit.h"
#include "train/analysis/forecast.h"

namespace lathe {
namespace {

/// Returns the value of memory.recompute that recomputes the first `count` of `all` blocks.
std::string first_blocks(int64_t count, int64_t all) {
  if (count == 0) return "none";
  return count == all ? "blocks" : str("blocks.0-", count - 1);
}

/// Finds the value of memory.recompute for a budget. All processes of the run must create this
/// object and call its functions.
class BudgetSearch {
 public:
  /// `program`: the resident bytes of this process besides its tensors.
  BudgetSearch(LoadedConfig& loaded, int ranks, int64_t budget, int64_t program)
      : loaded_(loaded), ranks_(ranks), budget_(budget), program_(program) {}

  /// Sets memory.recompute to the cheapest value that fits. Returns false if no value fits.
  bool search() {
    if (fits("none")) return true;
    if (blocks_ == 0) return false;
    if (!fits("blocks")) return fits("sqrt");

    // Each further recomputed block saves memory but takes time, so a bisection finds the smallest
    // number that fits.
    int64_t too_few = 0;
    recomputed_ = blocks_;
    while (recomputed_ - too_few > 1) {
      const int64_t middle = (too_few + recomputed_) / 2;
      (fits(first_blocks(middle, blocks_)) ? recomputed_ : too_few) = middle;
    }

    // Selective recomputation of all blocks takes as long as full recomputation of about a third of
    // them, and saves about half of the memory.
    if (3 * recomputed_ > blocks_ && fits("selective")) return true;
    return fits(first_blocks(recomputed_, blocks_));
  }

  /// Returns how many bytes a process needs, at most, with the last value that was tried.
  int64_t bytes() const { return bytes_; }
  int64_t blocks() const { return blocks_; }
  /// Returns how many blocks are recomputed, if memory.recompute names the first blocks or all
  /// blocks.
  int64_t recomputed() const { return recomputed_; }

 private:
  /// Sets memory.recompute, and returns whether each process stays within the budget.
  bool fits(const std::string& policy) {
    loaded_.config.memory.recompute = policy;
    const DryStep dry = dry_step(loaded_, ranks_);
    blocks_ = dry.blocks;
    const int64_t own = dry.resident() + program_;
    bytes_ = world().gather(at::full({1}, own, at::kLong)).max().item<int64_t>();
    return bytes_ <= budget_;
  }

  LoadedConfig& loaded_;
  int ranks_;
  int64_t budget_, program_;
  int64_t bytes_ = 0, blocks_ = 0, recomputed_ = 0;
};

}  // namespace

BudgetedConfig apply_memory_budget(LoadedConfig loaded, int ranks,
                                   std::optional<int64_t> program_bytes) {
  MemoryConfig& memory = loaded.config.memory;
  if (memory.budget.empty()) return {std::move(loaded), ""};
  const std::string where = origin_of(loaded, "memory.budget") + ": memory.budget";
  if (open_device(loaded.config.train.device) != "cpu")
    fail(Exit::usage, where, " supports only CPUs; leave it out and set memory.recompute");

  BudgetSearch search(loaded, ranks, parse_bytes(memory.budget, where),
                      program_bytes ? *program_bytes : process_overhead_bytes());
  if (!search.search()) {
    fail(Exit::memory, where, " = \"", memory.budget,
         "\" is not enough: ", ranks > 1 ? "a process" : "the run", " needs ",
         format("%.0f MB", static_cast<double>(search.bytes()) / 1e6),
         search.blocks() > 0 ? " with all of its blocks recomputed"
                             : ", and its model has no blocks",
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
  else if (memory.recompute != "none")
    choice = str(search.recomputed(), " of ", search.blocks(), " blocks are recomputed");
  return {std::move(loaded), str("budget    ", given, ": ", choice, ", about ",
                                 format("%.2f GB", static_cast<double>(search.bytes()) / 1e9),
                                 ranks > 1 ? " per process" : "")};
}

}  // namespace lathe
