#include "train/analysis/open.h"

#include <utility>

#include "train/analysis/memory_budget.h"
#include "train/formats/source.h"

namespace lathe {

RunData open_for_benchmark(LoadedConfig loaded) {
  loaded.config.train.eval_interval = 0;
  return RunData::open(apply_memory_budget(resolve_sources(as_new_run(std::move(loaded)))).loaded);
}

}  // namespace lathe
