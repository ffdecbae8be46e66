// Declares the initial values of a run's parameters.
#pragma once

#include <cstddef>

#include "train/formats/source.h"

namespace lathe {

/// Returns a function that writes the initial values of a parameter, or of this process's part of a
/// parameter that is cut among tensor ranks. The values are random or, with train.init_from, the
/// values of the source, which may also have values for buffers. `count` is the number of the
/// model's parameters and buffers.
WriteValues initial_values(const LoadedConfig& loaded, size_t count);

}  // namespace lathe
