// What a run will need, before it is started.
#pragma once

#include <string>

#include "core/flops.h"
#include "train/config/run_config.h"

namespace lathe {

/// Parameters, bytes by category, FLOPs of a step, its time (from a few steps on random tokens) and disk for
/// checkpoints, as text. Creates no file.
std::string plan(LoadedConfig loaded);

/// Counted FLOPs of one forward and backward of a micro-batch of random data.
FlopCount count_flops(LoadedConfig loaded);

}  // namespace lathe
