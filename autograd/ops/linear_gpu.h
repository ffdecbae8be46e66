// Declares the passes that linear ops share on GPUs.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace lathe {

/// Returns x W^T + bias + residual, computed by one matmul, in float32. Requires that x and the
/// weight are both bfloat16 or both float16, that the residual is float32, and that both sizes of
/// the weight are multiples of 8. Returns an undefined tensor if one of these conditions is not
/// met, or if cuBLASLt has no algorithm for the matmul.
at::Tensor gpu_linear_with_residual(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& bias, const at::Tensor& residual);
/// Returns gelu(u) in its tanh form and writes u = x W^T + bias to `before`.
at::Tensor gpu_linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           at::Tensor& before);
/// Returns du = dy gelu'(u) [..., O], and writes the sums of the columns of du to `sums` unless
/// `sums` is null.
at::Tensor gpu_gelu_backward(const at::Tensor& u, const at::Tensor& dy, at::Tensor* sums);

/// Returns silu(a) b, for a and b of one shape and dtype.
at::Tensor gpu_swiglu(const at::Tensor& a, const at::Tensor& b);
/// Returns the gradients of a and b in gpu_swiglu(), given the gradient dy of its result.
std::pair<at::Tensor, at::Tensor> gpu_swiglu_backward(const at::Tensor& a, const at::Tensor& b,
                                                      const at::Tensor& dy);

/// Returns residual + y in the residual's dtype.
at::Tensor added(const at::Tensor& residual, const at::Tensor& y);
/// Returns the sums of the columns of dy [N, C]. On a GPU, they are in float32 or float64.
at::Tensor column_sums(const at::Tensor& dy);

}  // namespace lathe
