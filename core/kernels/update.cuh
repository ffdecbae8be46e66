// Launches the parts of an optimizer step on a CUDA stream; see core/kernels/update.h. All pointers
// are device pointers, except `grads` and `args`.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/update.h"

namespace lathe {

/// Writes the partial sums of squares of `count` gradients one after another. A gradient of n
/// elements has grad_sum_chunks(n) sums. One launch processes many gradients.
cudaError_t grad_sum_cuda(const GradArgs* grads, int64_t count, double* partials,
                          cudaStream_t stream);
/// Compute the same as decide_cpu(), decide_gradient_cpu() and end_stages_cpu().
cudaError_t decide_cuda(const StepRequest& request, const double* partials, int64_t n,
                        const float* loss, StepControl* control, ScaleState* scale,
                        cudaStream_t stream);
cudaError_t decide_gradient_cuda(const double* partials, int64_t n, StepControl* control,
                                 cudaStream_t stream);
cudaError_t end_stages_cuda(int64_t step, const double* partials, int64_t n, const float* loss,
                            StepControl* control, cudaStream_t stream);
/// Updates `count` parameters. One launch processes many parameters.
cudaError_t update_cuda(const UpdateArgs* args, int64_t count, const UpdateRule& rule,
                        StepControl* control, cudaStream_t stream);

}  // namespace lathe
