// Launches the kernels of a linear layer, except its matrix products, on a CUDA stream. All
// pointers are device pointers that are aligned to 16 bytes. Elements are float32, bfloat16 or
// float16.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/linear_gpu.h"
#include "core/kernels/pack.h"

namespace lathe {

/// Writes the sums of the columns of x to `sums` [columns], in float32 and always in the same
/// order. Rows of x must have no gaps between them. `partials` is scratch memory of
/// column_sum_scratch() floats. Returns cudaErrorInvalidValue if column_sums_on_gpu(columns) is
/// false.
cudaError_t column_sums_cuda(Matrix x, int64_t rows, int64_t columns, float* partials, float* sums,
                             cudaStream_t stream);
/// Writes out = a + b for n elements. `out` has the type of `a`, and may be `a` itself. n must be a
/// multiple of 4.
cudaError_t add_cuda(const void* a, Element a_type, const void* b, Element b_type, void* out,
                     int64_t n, cudaStream_t stream);
/// Writes out = x * *factor for n elements. n must be a multiple of 4. `out` may be x itself if
/// both have the same type.
cudaError_t scale_cuda(const void* x, Element type, const float* factor, void* out,
                       Element out_type, int64_t n, cudaStream_t stream);

}  // namespace lathe
