// Launches core/kernels/norm.h's norms on a CUDA stream. All pointers are of the device; float32,
// bfloat16 and float16.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/norm.h"

namespace lathe {

/// y as norm_forward's. Columns as norm_on_gpu() allows, rows without gaps between them.
cudaError_t norm_forward_cuda(const NormRows& n, Matrix x, Matrix y, float eps,
                              cudaStream_t stream);
/// dx as norm_backward's, and dweight and dbias where `partials` is not null, which has
/// norm_partials() floats.
cudaError_t norm_backward_cuda(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add,
                               float* partials, float* dweight, float* dbias, cudaStream_t stream);

}  // namespace lathe
