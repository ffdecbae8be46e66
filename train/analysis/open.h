// Opens a config whose steps are measured without a run folder: bench, profile and find.
#pragma once

#include "train/session/session.h"

namespace lathe {

/// Resolves train.init_from, adapters.base and memory.budget of the config, turns evaluations off,
/// and opens the data. Throws what RunData::open() and apply_memory_budget() throw.
RunData open_for_benchmark(LoadedConfig loaded);

}  // namespace lathe
