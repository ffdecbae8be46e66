#include "train/analysis/open.h"

#include "train/analysis/memory_budget.h"
#include "train/formats/source.h"

namespace lathe {

RunData open_for_benchmark(LoadedConfig& loaded) {
  loaded.config.train.eval_interval = 0;
  resolve_sources(loaded);
  apply_memory_budget(loaded);
  return RunData::open(loaded);
}

}  // namespace lathe
