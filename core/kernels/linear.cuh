// Parts of a linear layer around its matrix products, on a CUDA stream. All pointers are device
// pointers, aligned to 16 bytes. Elements are float32, bfloat16 or float16.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/linear_gpu.h"
#include "core/kernels/pack.h"

namespace lathe {

/// Writes the sums of the columns of x, whose rows are contiguous, in float32, always in the same
/// order. `partials`: column_partials() floats.
cudaError_t column_sums_cuda(Matrix x, int64_t rows, int64_t columns, float* partials, float* sums,
                             cudaStream_t stream);
/// Writes out = a + b for n elements, in a's type. `out` may be a. n must be a multiple of 4.
cudaError_t add_cuda(const void* a, Element a_type, const void* b, Element b_type, void* out,
                     int64_t n, cudaStream_t stream);
/// Writes out = x * *factor for n elements, a multiple of 4. `out` may be x if it has its type.
cudaError_t scale_cuda(const void* x, Element type, const float* factor, void* out,
                       Element out_type, int64_t n, cudaStream_t stream);

}  // namespace lathe
