// What the ops of causal attention share: the mask, the checks of documents, and the count of
// FLOPs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "autograd/op.h"
#include "autograd/ops/attention_gpu.h"

namespace lathe {

/// Returns the FLOPs of attention with `keys` scores for each query. Masked scores count too, as is
/// the convention in publications, although the causal kernels skip masked blocks.
OpFlops attention_flops(const at::Tensor& y, int64_t keys, int64_t heads);

/// Returns which of the `keys` positions each of the last `time` positions must not see: bool [T,
/// S], or [B, 1, T, S] with starts.
at::Tensor attention_mask(int64_t time, int64_t keys, const at::Tensor& starts, at::Device device);

/// Returns starts [B, T] as the kernel reads them. Throws unless they are int64 and, on the CPU,
/// never decrease along a row and are not after their positions, which begin at `first`.
at::Tensor checked_starts(const at::Tensor& starts, int64_t batch, int64_t time, int64_t first = 0);

/// Returns the dtype in which autocast passes x to an op of Amp::low.
at::ScalarType autocast_dtype(const Variable& x);

/// Returns the documents of starts, if they are on a GPU that has a kernel for x with heads of that
/// width.
DocumentPlaces places_on_gpu(const at::Tensor& starts, const Variable& x, int64_t width);

}  // namespace lathe
