// Declares the training loop.
#pragma once

#include "train/config/run_config.h"

namespace lathe {

/// Starts or resumes the run that the config describes. Returns Exit::done, or Exit::stopped if a
/// signal, train.max_time or train.pause_at stopped the run after a checkpoint was written. On
/// failure, throws the error. `verify_data`: whether to read all data before training and compare
/// it with the checksums in the data's manifest. `force`: whether to train even if the run needs
/// more than 1.5 times the free memory, or more disk space than is free.
Exit train(const LoadedConfig& loaded, bool verify_data = false, bool force = false);

}  // namespace lathe
