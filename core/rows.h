// Sums over the last dim of a tensor, softmax, and log softmax, by the kernels of
// core/kernels/row_ops.h. Their bits depend neither on the number of threads nor on the layout. A
// chain (core/kernels/chain.h), which computes a few rows at a time, gets the same bits.
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// Returns whether the functions below take tensors of these sizes. A row extends over the last
/// dim; there must be at least two rows of 16 to 32768 elements. Ops must also use kernels
/// (gemm_ready(Element::f32)).
bool has_row_kernels(at::IntArrayRef sizes);
/// Returns whether the functions below take x. It must also be a float32 tensor on the CPU.
bool has_row_kernels(const at::Tensor& x);

/// Returns whether row_sums() takes x. The elements of a row must also be adjacent in memory, or a
/// single number that is expanded.
bool has_row_sums(const at::Tensor& x);
/// Returns the sums of x over its last dim, as a tensor of shape `sizes`.
at::Tensor row_sums(const at::Tensor& x, at::IntArrayRef sizes);
/// Returns softmax(x) over the last dim.
at::Tensor row_softmax(const at::Tensor& x);
/// Returns the gradient of x, given the gradient dy of y = softmax(x), and y.
at::Tensor row_softmax_gradient(const at::Tensor& dy, const at::Tensor& y);
/// Returns log(softmax(x)) over the last dim.
at::Tensor row_log_softmax(const at::Tensor& x);
/// Returns the gradient of x, given the gradient dy of y = log(softmax(x)), and y.
at::Tensor row_log_softmax_gradient(const at::Tensor& dy, const at::Tensor& y);

}  // namespace lathe
