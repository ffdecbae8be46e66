// Elementwise functions, computed by the kernels of chains (core/kernels/chain.h), so that a
// function has the same bits alone and in a chain.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/kernels/chain.h"

namespace lathe {

/// Returns the op that computes the same function by one of Lathe's kernels, such as own_tanh for
/// tanh, if there is one and ops use kernels (gemm_ready(Element::f32)). Otherwise returns `op`.
ChainOp with_kernel(ChainOp op);

/// Returns whether elementwise() takes x: a contiguous float32 or bfloat16 tensor on the CPU that
/// is not empty. Ops must also use kernels (gemm_ready(Element::f32)).
bool has_elementwise(const at::Tensor& x);
/// Returns the result of own_tanh, own_silu, own_gelu or one of their gradients for a and, if the
/// op has two operands, b, which has the dtype and shape of a. The result is contiguous.
at::Tensor elementwise(ChainOp op, const at::Tensor& a, const at::Tensor& b = {});

}  // namespace lathe
