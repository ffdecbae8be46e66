// Launches the functions of core/kernels/e4m3.h on a CUDA stream. All pointers are device pointers.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/e4m3.h"

namespace lathe {

/// Compute the same as pack_e4m3() and unpack_e4m3(). The results are bitwise equal to theirs.
cudaError_t pack_e4m3_cuda(const void* x, Element type, uint8_t* y, float* factors, int64_t rows,
                           int64_t n, cudaStream_t stream);
cudaError_t unpack_e4m3_cuda(const uint8_t* x, const float* factors, void* y, Element type,
                             int64_t rows, int64_t n, cudaStream_t stream);

}  // namespace lathe
