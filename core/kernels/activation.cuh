// Launches core/kernels/activation.h's functions on a CUDA stream. All pointers are of the device.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/activation.h"

namespace lathe {

/// As gelu_backward, for float32, bfloat16 and float16; pointers at multiples of 16 bytes.
cudaError_t gelu_backward_cuda(const void* x, const void* dy, void* dx, Element type, int64_t n,
                               cudaStream_t stream);
/// The same for a matrix, and the sums of dx's columns, as column_sums_cuda() of linear.cuh.
cudaError_t gelu_backward_sums_cuda(const void* x, const void* dy, void* dx, Element type,
                                    int64_t rows, int64_t columns, float* partials, float* sums,
                                    cudaStream_t stream);

}  // namespace lathe
