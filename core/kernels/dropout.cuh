// Launches dropout (core/kernels/dropout.h) on a CUDA stream.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/dropout.h"

namespace lathe {

/// For 0 <= i < n, sets y[i] to 0 if the mask drops element i, and to x[i] * mask.scale otherwise.
/// x and y are contiguous and in device memory.
cudaError_t dropout_cuda(const void* x, void* y, int64_t n, Element type, DropoutMask mask,
                         cudaStream_t stream);

}  // namespace lathe
