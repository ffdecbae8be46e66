// The training loop.
#pragma once

#include "train/config/run_config.h"

namespace lathe {

/// Starts or resumes the run that the config describes. Returns Exit::done, or Exit::stopped
/// where a signal or the time limit ended it with a checkpoint written; everything else is thrown.
/// `verify_data`: all data is read and compared with its manifest's checksums before anything else.
Exit train(const LoadedConfig& loaded, bool verify_data = false, bool force = false);

}  // namespace lathe
