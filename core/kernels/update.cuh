// Launches the parts of an optimizer step on a CUDA stream; see core/kernels/update.h. All pointers are of the device.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/update.h"

namespace lathe {

/// Writes the ceil(n / grad_sum_chunk) partial sums of one gradient.
cudaError_t grad_sum_cuda(const void* grad, Element type, int64_t n, double* partials, cudaStream_t stream);
cudaError_t decide_cuda(const StepRequest& request, const double* partials, int64_t n, const float* loss,
                        StepControl* control, ScaleState* scale, cudaStream_t stream);
cudaError_t update_cuda(const UpdateArgs& args, const UpdateRule& rule, StepControl* control, cudaStream_t stream);

}  // namespace lathe
