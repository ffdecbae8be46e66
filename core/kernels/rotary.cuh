// Launches core/kernels/rotary.h's rotation on a CUDA stream. All pointers are device pointers.
// They must be aligned to 16 bytes, and the table to 32 bytes if the heads have a 16-bit type.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/rotary.h"

namespace lathe {

/// Computes the same as rotate_heads(), in float32, bfloat16 or float16, for sizes that
/// rotation_on_gpu() allows.
cudaError_t rotate_heads_cuda(const void* x, void* y, Element type, int64_t rows, int64_t heads,
                              int64_t width, const float* table, int64_t table_rows, bool back,
                              cudaStream_t stream);

}  // namespace lathe
