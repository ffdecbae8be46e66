// Opens a config for commands that run steps without a run folder: bench, profile and find.
#pragma once

#include "train/session/session.h"

namespace lathe {

/// Resolves train.init_from, adapters.base and memory.budget of the config, turns off evaluations,
/// and opens the data. Throws the errors of RunData::open() and apply_memory_budget().
RunData open_for_benchmark(LoadedConfig loaded);

}  // namespace lathe
