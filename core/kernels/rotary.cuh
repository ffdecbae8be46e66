// Launches core/kernels/rotary.h's rotation on a CUDA stream. All pointers are of the device and
// multiples of 16 bytes.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/rotary.h"

namespace lathe {

/// As rotate_heads, for float32, bfloat16 and float16, with heads as rotation_on_gpu() allows.
cudaError_t rotate_heads_cuda(const void* x, void* y, Element type, int64_t rows, int64_t heads,
                              int64_t width, const float* table, int64_t table_rows, bool back,
                              cudaStream_t stream);

}  // namespace lathe
