// Checks the keys of a config for contradictions.
#pragma once

#include "train/config/run_config.h"

namespace lathe {

/// Returns whether train.init_from or adapters.base is set. The run or folder that this key names
/// then determines the weights and the keys of [model].
bool has_source(const RunConfig& config);

/// Throws Exit::usage for keys that contradict each other. The message has the origin of the key
/// and a remedy.
void check_config(const LoadedConfig& loaded);

/// Throws Exit::usage for the contradictions that transforms find. `has_model`: whether the keys of
/// [model] are final, so that no source of weights will replace them. If they are not, skips the
/// transforms that check keys of [model].
void check_transforms(const LoadedConfig& loaded, bool has_model);

}  // namespace lathe
