// Launches the rotation of core/kernels/rotary.h on a CUDA stream. All pointers are device
// pointers, which must be aligned to 16 bytes.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/rotary.h"

namespace lathe {

/// Computes the same as rotate_heads(), in float32, bfloat16 or float16. rotation_on_gpu() must
/// return true for the sizes.
cudaError_t rotate_heads_cuda(const void* x, void* y, Element type, int64_t rows, int64_t heads,
                              int64_t width, const float* table, int64_t table_rows, bool back,
                              cudaStream_t stream);

}  // namespace lathe
