// Launches core/kernels/norm.h's norms on a CUDA stream. All pointers are of the device; float32,
// bfloat16 and float16.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/norm.h"

namespace lathe {

/// Does what norm_forward() does, for row lengths that norm_on_gpu() allows and rows without gaps
/// between them.
cudaError_t norm_forward_cuda(const NormRows& n, Matrix x, Matrix y, float eps,
                              cudaStream_t stream);
/// Does what norm_backward() does. Computes dweight and dbias only if `partials` is not null, which
/// must have room for norm_partials() floats.
cudaError_t norm_backward_cuda(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add,
                               float* partials, float* dweight, float* dbias, cudaStream_t stream);

}  // namespace lathe
