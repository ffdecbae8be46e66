// The training loop.
#pragma once

#include "train/config/run_config.h"

namespace lathe {

/// Starts or resumes the run that the config describes. Returns Exit::done, or Exit::stopped if a
/// signal, train.max_time or train.pause_at stopped the run after a checkpoint was written. All
/// errors are thrown. `verify_data`: read all data and compare it with its manifest's checksums
/// before training. `force`: train even if the run needs more than 1.5 times the free memory.
Exit train(const LoadedConfig& loaded, bool verify_data = false, bool force = false);

}  // namespace lathe
