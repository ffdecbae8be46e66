// Checks the keys of a config against each other.
#pragma once

#include "train/config/run_config.h"

namespace lathe {

/// Returns whether train.init_from or adapters.base is set. That source then gives the weights and
/// the keys of [model].
bool has_source(const RunConfig& config);

/// Throws Exit::usage, with the origin of the key and the remedy, for keys that contradict each
/// other.
void check_config(const LoadedConfig& loaded);

/// Throws Exit::usage for the conflicts that transforms find. `has_model`: whether the keys of
/// [model] are final, so that no source of weights will replace them. If not, transforms that check
/// keys of [model] are skipped.
void check_transforms(const LoadedConfig& loaded, bool has_model);

}  // namespace lathe
