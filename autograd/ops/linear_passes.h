// Declares the passes that linear ops share. On CPUs, the passes are blocked matrix products
// (core/kernels/gemm.h) that apply bias, activation, residual and rounding to each block while it
// is in cache. Elsewhere, the passes are ATen's matrix products.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "autograd/op.h"
#include "core/kernels/epilogue.h"

namespace lathe {

/// Returns `sizes` with the last size replaced by `last`.
inline std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  auto out = sizes.vec();
  out.back() = last;
  return out;
}

/// Returns the number of rows of x: the product of all sizes but the last one. reshape() can't
/// infer this number from a -1 if the last dim is empty.
template <class T>
int64_t rows_of(const T& x) {
  return c10::multiply_integers(x.sizes().slice(0, x.sizes().size() - 1));
}

/// Throws unless x [..., I], weight [O, I] and bias [O], which may be undefined, fit each other.
void check_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// Returns x W^T + bias in x's dtype, computed by ATen on any device and for any dtype.
at::Tensor aten_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// Returns activation(x W^T + bias) + residual in the residual's dtype or, if there is no residual,
/// in x's dtype. If `before` is not null, stores the activation's argument in it. All tensors must
/// be on the CPU; x, weight and residual must have dtypes that kernel_dtype() accepts.
at::Tensor linear_pass(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& residual, Activation activation, at::Tensor* before);

/// One of several layers y = x W^T + b with a common x, and the layer's gradients.
struct LinearGradients {
  at::Tensor dy;  ///< gradient of y; undefined if none flows
  const at::Tensor& weight;
  at::ScalarType weight_grad;  ///< dtype of dW
  size_t slot;                 ///< the index of the weight among the op's inputs
  bool need_weight = false, need_bias = false;
  at::Tensor dw{}, db{};
};

/// Returns dx = the sum of dy W over the layers, if `need_x`. Also computes for each layer
/// dW = dy^T x, added to the gradient that GradSlots::take() hands over, and db = the sum of dy
/// over the rows. Matrix products that share a factor read this factor once. x may be undefined if
/// no weight needs a gradient. On a GPU, ATen computes dW in the weight's dtype, and the engine
/// adds it.
at::Tensor linear_backward(const at::Tensor& x, std::span<LinearGradients> layers, bool need_x,
                           GradSlots& slots);

/// Counts the FLOPs of y = x W^T + bias + residual; bias and residual may be undefined.
inline OpFlops linear_flops(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                            const at::Tensor& y) {
  const auto n = static_cast<double>(y.numel());
  const double product = 2 * n * static_cast<double>(x.size(-1));
  const double add = bias.defined() ? n : 0, join = residual.defined() ? n : 0;
  return {.forward = {product, add + join}, .backward = {2 * product, add}};
}

}  // namespace lathe
