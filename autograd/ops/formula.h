// Declares the functions that backward formulas use. They have the same names and meaning for
// tensors and Variables, so that one formula serves the ordinary pass and, under create_graph,
// second derivatives. For Variables they are the ops of ops.h. For tensors they are ATen's
// functions, found by argument-dependent lookup, so this header includes the headers of these
// functions. Functions that ATen has only as methods are defined below.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/permute.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/transpose.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/unsqueeze.h>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/blocks.h"
#include "core/dtype.h"

namespace lathe {

inline at::Tensor expand(const at::Tensor& x, at::IntArrayRef sizes) { return x.expand(sizes); }
inline at::Tensor cast(const at::Tensor& x, at::ScalarType dtype) { return x.to(dtype); }
// Without these overloads, calls with plain numbers would be ambiguous: ATen's functions convert
// the number to a Scalar or an optional, and the functions of ops.h convert the tensor to a
// Variable.
inline at::Tensor pow(const at::Tensor& x, double exponent) {
  return in_blocks(LATHE_ATEN(pow, t[0], scalar_for(t[0], exponent)), {x});
}
inline at::Tensor masked_fill(const at::Tensor& x, const at::Tensor& mask, double value) {
  return at::masked_fill(x, mask, value);
}
inline at::Tensor slice(const at::Tensor& x, int64_t dim, int64_t start, int64_t end,
                        int64_t step = 1) {
  return at::slice(x, dim, start, end, step);
}
inline at::Tensor slice_backward(const at::Tensor& x, int64_t dim, int64_t start, int64_t end,
                                 int64_t step, int64_t size) {
  auto sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim)] = size;
  at::Tensor y = x.new_zeros(sizes);
  y.slice(dim, start, end, step).copy_(x);
  return y;
}
inline at::Tensor gather_backward(const at::Tensor& x, int64_t dim, const at::Tensor& index,
                                  int64_t size) {
  auto sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(dim)] = size;
  return x.new_zeros(sizes).scatter_add_(dim, index, x);
}

}  // namespace lathe
