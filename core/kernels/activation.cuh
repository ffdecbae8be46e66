// Launches GELU's backward pass (core/kernels/activation.h) on a CUDA stream. All pointers are
// device pointers.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/activation.h"

namespace lathe {

/// Does the same as gelu_backward(), for float32, bfloat16 or float16. Pointers must be aligned to
/// 16 bytes.
cudaError_t gelu_backward_cuda(const void* x, const void* dy, void* dx, Element type, int64_t n,
                               cudaStream_t stream);
/// Does the same for a matrix, and also writes the sums of the columns of dx to `sums`, as
/// column_sums_cuda() of linear.cuh does.
cudaError_t gelu_backward_sums_cuda(const void* x, const void* dy, void* dx, Element type,
                                    int64_t rows, int64_t columns, float* partials, float* sums,
                                    cudaStream_t stream);

}  // namespace lathe
