// Launches the softmax cross-entropy of core/kernels/loss.h on a CUDA stream. All pointers are
// device pointers.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/loss.h"

namespace lathe {

/// Computes the same as cross_entropy_rows(), for float32, bfloat16 and float16. Rows must begin at
/// multiples of 16 bytes. The number of padding elements is the stride minus `classes`. If a target
/// is neither `ignore` nor a class, the loss and the gradient of its row are NaN.
cudaError_t cross_entropy_rows_cuda(Matrix logits, int64_t rows, int64_t classes,
                                    const int64_t* targets, int64_t ignore, float weight,
                                    bool gradient, float* losses, cudaStream_t stream);

}  // namespace lathe
