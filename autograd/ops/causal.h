// Declares helpers of the ops for causal attention: the mask, the checks of document starts, and
// the count of FLOPs. starts[b, t] is the position at which the document of token t of row b
// begins. If `starts` is undefined, each row is one document.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "autograd/op.h"
#include "autograd/ops/attention_gpu.h"

namespace lathe {

/// Returns the FLOPs of attention with the result y [B, T, C] and `keys` scores for each query.
/// Masked scores also count, as is the convention in publications, although the causal kernels skip
/// masked blocks.
OpFlops attention_flops(const at::Tensor& y, int64_t keys, int64_t heads);

/// Returns the attention mask of the last T = `time` of S = `keys` positions: bool [T, S], or
/// [B, 1, T, S] with `starts`. True marks a key that a query must not attend to.
at::Tensor attention_mask(int64_t time, int64_t keys, const at::Tensor& starts, at::Device device);

/// Checks `starts` and returns it, contiguous if it is on the CPU. Throws unless it is undefined or
/// int64 [B, T]. If it is on the CPU, also throws unless each row is nondecreasing and starts[b, t]
/// is between 0 and `first` + t, the position of token t. A dry run skips the checks of values.
at::Tensor checked_starts(const at::Tensor& starts, int64_t batch, int64_t time, int64_t first = 0);

/// Returns the dtype in which autocast passes x to an op whose policy is Amp::low.
at::ScalarType autocast_dtype(const Variable& x);

/// Returns the document boundaries that `starts` describes, for the GPU kernels. `begins` of the
/// result is an undefined tensor if `starts` is not on a GPU, if it is not valid for
/// document_bounds(), or if no kernel takes heads of `width` elements in the dtype that autocast
/// gives x.
DocumentBounds gpu_document_bounds(const at::Tensor& starts, const Variable& x, int64_t width);

}  // namespace lathe
