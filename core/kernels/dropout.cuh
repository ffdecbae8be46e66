// Launches dropout (core/kernels/dropout.h) on a CUDA stream.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/dropout.h"

namespace lathe {

/// Sets y[i] = dropped(i) ? 0 : x[i] * scale for 0 <= i < n. x and y are contiguous and in device
/// memory.
cudaError_t dropout_cuda(const void* x, void* y, int64_t n, Element type, DropoutMask mask,
                         cudaStream_t stream);

}  // namespace lathe
