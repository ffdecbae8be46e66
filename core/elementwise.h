// Declares elementwise functions that run as chains of one op (core/kernels/chain.h). An op that is
// called alone therefore gives bitwise the same result as within a longer chain.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/kernels/chain.h"

namespace lathe {

/// Returns the op that computes the function of `op` with one of Lathe's kernels, such as own_tanh
/// for tanh. Returns `op` itself if Lathe has no such kernel, or if ops do not use kernels on this
/// machine (gemm_ready(Element::f32) is false).
ChainOp with_kernel(ChainOp op);

/// Returns whether elementwise() can compute a function of x: x must be a contiguous, non-empty
/// float32, bfloat16 or float16 tensor on the CPU, and gemm_ready(Element::f32) must be true.
bool has_elementwise(const at::Tensor& x);
/// Computes `op`: own_tanh, own_silu or own_gelu of `a`, or one of their gradients from `a` and
/// `b`. `b` must have the dtype and shape of `a`. The result is contiguous.
at::Tensor elementwise(ChainOp op, const at::Tensor& a, const at::Tensor& b = {});

}  // namespace lathe
