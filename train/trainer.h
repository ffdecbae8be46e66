// The training loop.
#pragma once

#include "train/run_config.h"

namespace lathe {

/// Trains, or goes on with, the run that the config describes. Returns Exit::done, or Exit::stopped where a signal or
/// the time limit ended it with a checkpoint written; everything else is thrown.
Exit train(LoadedConfig loaded);

}  // namespace lathe
