// The initial values of a run's parameters.
#pragma once

#include <cstddef>

#include "train/formats/source.h"

namespace lathe {

/// Returns a function that writes the initial values of a parameter, or of this process's part of
/// one that is cut among tensor ranks. The values are random, or those of train.init_from, which
/// may have buffers too. `count`: the number of the model's parameters and buffers.
WriteValues initial_values(const LoadedConfig& loaded, size_t count);

}  // namespace lathe
