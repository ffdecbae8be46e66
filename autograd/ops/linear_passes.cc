#include "autograd/ops/linear_passes.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "autograd/ops/kernel.h"
#include "autograd/ops/linear_gpu.h"
#include "autograd/ops/product.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/kernels/gemm.h"

namespace lathe {

void check_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  LATHE_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
              "the last dim of x must be ", weight.size(weight.dim() - 1));
  LATHE_CHECK(x.scalar_type() == weight.scalar_type(), "x and weight must have one dtype");
  LATHE_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
              "bias must have shape [", weight.size(0), "]");
  for (const at::Tensor& t : {weight, bias})
    LATHE_CHECK(!t.defined() || t.device() == x.device(), "x is on ", x.device().str(),
                ", but another input is not");
}

at::Tensor aten_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType dtype = widened(x) ? at::kFloat : x.scalar_type();
  const at::Tensor rows = x.reshape({rows_of(x), x.size(-1)}).to(dtype), w = weight.to(dtype).t();
  const at::Tensor y =
      (bias.defined() ? at::addmm(bias.to(dtype), rows, w) : rows.matmul(w)).to(x.scalar_type());
  const auto sizes = with_last(x.sizes(), weight.size(0));
  // Make a view only if needed, because a view keeps its base alive.
  return y.sizes() == at::IntArrayRef(sizes) ? y : y.view(sizes);
}

at::Tensor linear_pass(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& residual, Activation activation, at::Tensor* before) {
  const at::Tensor in = x.contiguous(), w = weight.contiguous(), b = as_float(bias),
                   add = residual.defined() ? residual.contiguous() : residual;
  at::Tensor y = at::empty(with_last(x.sizes(), w.size(0)),
                           residual.defined() ? residual.options() : x.options());
  Epilogue e{.out = matrix_of(y), .bias = floats_of(b), .activation = activation};
  if (before != nullptr) e.before = matrix_of(*before = at::empty_like(y));
  if (add.defined()) e.residual = matrix_of(add);
  gemm_nt(matrix_of(in), matrix_of(w), in.numel() / w.size(1), w.size(0), w.size(1), e);
  bump_version(y);
  return y;
}

namespace {

at::Tensor linear_backward_on_gpu(const at::Tensor& x, std::span<LinearGradients> layers,
                                  bool need_x) {
  at::Tensor dx;
  for (LinearGradients& layer : layers) {
    if (!layer.dy.defined()) continue;
    const at::Tensor& w = layer.weight;
    const at::Tensor dy = layer.dy.to(w.scalar_type()).reshape({-1, w.size(0)});
    if (need_x) dx = dx.defined() ? dx.addmm_(dy, w) : dy.matmul(w);
    if (layer.need_weight) layer.dw = dy.t().matmul(x.reshape({-1, w.size(1)}));
    if (layer.need_bias) layer.db = column_sums(dy);
  }
  return dx;
}

}  // namespace

at::Tensor linear_backward(const at::Tensor& x_, std::span<LinearGradients> layers, bool need_x,
                           GradSlots& slots) {
  const at::Tensor x = x_.defined() ? x_.contiguous() : x_;
  const at::Tensor& some_dy = std::ranges::find_if(layers, [](const LinearGradients& layer) {
                                return layer.dy.defined();
                              })->dy;
  const int64_t in = layers[0].weight.size(1), rows = rows_of(some_dy);
  const at::TensorOptions options = layers[0].weight.options();
  const auto sizes = with_last(some_dy.sizes(), in);
  if (some_dy.is_cuda()) {
    const at::Tensor dx = linear_backward_on_gpu(x_, layers, need_x);
    return need_x ? dx.view(sizes) : dx;
  }

  c10::SmallVector<Product, 3> to_x;
  c10::SmallVector<LeftFactor, 3> to_weights;
  // Contiguous copies of weights, kept alive until the matmuls have run.
  c10::SmallVector<at::Tensor, 3> read;

  for (LinearGradients& layer : layers) {
    if (!layer.dy.defined()) continue;

    const int64_t out = layer.weight.size(0);
    layer.dy = layer.dy.to(layer.weight.scalar_type()).contiguous();

    if (need_x) {
      read.push_back(layer.weight.contiguous());
      to_x.push_back({.a = matrix_of(layer.dy), .b = matrix_of(read.back()), .k = out});
    }

    // The matmul for the weight's gradient also sums dy for the bias. If that matmul is not needed,
    // sum dy here.
    if (!layer.need_weight) {
      if (layer.need_bias)
        layer.db = layer.dy.reshape({rows, out}).sum(0, /*keepdim=*/false, at::kFloat);
      continue;
    }

    if (layer.need_bias) layer.db = at::empty({out}, options.dtype(at::kFloat));

    // If the weight already has a gradient that may be written to and has the right dtype, the
    // matmul adds to it.
    layer.dw = slots.take(layer.slot, layer.weight_grad);
    const bool add = layer.dw.defined();
    if (!add) layer.dw = at::empty({out, in}, options.dtype(layer.weight_grad));
    Epilogue e{.out = matrix_of(layer.dw)};
    if (add) e.residual = e.out;
    to_weights.push_back(
        {.a = matrix_of(layer.dy),
         .m = out,
         .e = e,
         .column_sums = layer.need_bias ? layer.db.mutable_data_ptr<float>() : nullptr});
  }

  at::Tensor dx;
  if (!to_x.empty()) {
    dx = at::empty(sizes, options);
    gemm(to_x, rows, in, {.out = matrix_of(dx)});
    bump_version(dx);
  }

  if (!to_weights.empty()) gemm_tn(to_weights, matrix_of(x), in, rows);
  for (const LinearGradients& layer : layers) {
    if (layer.dw.defined()) bump_version(layer.dw);
  }
  return dx;
}

}  // namespace lathe
