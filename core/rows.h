// Declares sums over the last dim of a tensor, softmax, and log softmax, which the kernels of
// core/kernels/row_ops.h compute. The bits of the results depend neither on the number of threads
// nor on the layout. A chain of ops (core/kernels/chain.h) computes a few rows at a time, and gives
// bitwise the same results.
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// Returns whether the functions below support tensors of these sizes: whether there are at least
/// two rows of 16 to 32768 elements, and gemm_ready(Element::f32) is true. A row extends over the
/// last dim.
bool has_row_kernels(at::IntArrayRef sizes);
/// Returns whether the functions below, except row_sums(), support x: whether
/// has_row_kernels(x.sizes()) is true, and x is a float32 tensor on the CPU.
bool has_row_kernels(const at::Tensor& x);

/// Returns whether row_sums() supports x: whether has_row_kernels(x) is true, and the elements of a
/// row are adjacent in memory or are a single number that is expanded.
bool has_row_sums(const at::Tensor& x);
/// Returns the sums of x over its last dim, as a tensor of shape `sizes`.
at::Tensor row_sums(const at::Tensor& x, at::IntArrayRef sizes);
/// Returns softmax(x) over the last dim.
at::Tensor row_softmax(const at::Tensor& x);
/// Returns the gradient of x, where y = softmax(x) and dy is the gradient of y.
at::Tensor row_softmax_gradient(const at::Tensor& dy, const at::Tensor& y);
/// Returns log(softmax(x)) over the last dim.
at::Tensor row_log_softmax(const at::Tensor& x);
/// Returns the gradient of x, where y = log(softmax(x)) and dy is the gradient of y.
at::Tensor row_log_softmax_gradient(const at::Tensor& dy, const at::Tensor& y);

}  // namespace lathe
