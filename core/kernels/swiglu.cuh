// Launches the product of SwiGLU (core/kernels/activation.h) on a CUDA stream. All pointers are
// device pointers that are aligned to 16 bytes. Elements are float32, bfloat16 or float16.
// swiglu_on_gpu() must return true for the sizes.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/activation.h"

namespace lathe {

/// Computes y [rows, h] = silu(a) b. Rows of a and b are `stride` elements apart.
cudaError_t swiglu_forward_cuda(const void* a, const void* b, void* y, Element type, int64_t rows,
                                int64_t h, int64_t stride, cudaStream_t stream);
/// Computes the same as swiglu_backward().
cudaError_t swiglu_backward_cuda(const void* a, const void* b, const void* dy, void* da, void* db,
                                 Element type, int64_t rows, int64_t h, int64_t stride,
                                 cudaStream_t stream);

}  // namespace lathe
