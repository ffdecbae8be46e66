// Launches the norms of core/kernels/norm.h on a CUDA stream. All pointers are device pointers.
// Elements are float32, bfloat16 or float16.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/norm.h"

namespace lathe {

/// Computes the same as norm_forward(). norm_on_gpu() must return true for the row length, and
/// there must be no gaps between rows.
cudaError_t norm_forward_cuda(const NormRows& n, Matrix x, Matrix y, float eps,
                              cudaStream_t stream);
/// Computes the same as norm_backward(). Rows must meet the requirements of norm_forward_cuda().
/// Computes dweight and dbias only if `partials` is not null. `partials` must have space for
/// norm_sum_scratch() floats.
cudaError_t norm_backward_cuda(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add,
                               float* partials, float* dweight, float* dbias, cudaStream_t stream);

}  // namespace lathe
