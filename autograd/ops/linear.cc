// Implements linear layers, which take most of the FLOPs. The op "linear" uses the passes of
// linear_passes.h where they apply, and ATen's matrix products elsewhere. Layers with quantized
// weights and layers in fp8 are separate ops.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <memory>

#include "autograd/fp8.h"
#include "autograd/node.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/linear_gpu.h"
#include "autograd/ops/linear_passes.h"
#include "autograd/ops/plain.h"
#include "autograd/ops/product.h"
#include "core/kernels/activation.h"
#include "core/kernels/gemv.h"
#include "core/quantized.h"

namespace lathe {
namespace {

at::ScalarType type_of(const at::Tensor& t) { return t.scalar_type(); }
at::ScalarType type_of(const Variable& v) { return v.dtype(); }

bool fused(const at::Tensor& x, const at::Tensor& weight) {
  return kernel_ready(x) && kernel_ready(weight) && x.scalar_type() == weight.scalar_type();
}

at::Tensor bias_gradient(const at::Tensor& dy) { return column_sums(dy); }
Variable bias_gradient(const Variable& dy) { return sum(dy, 0); }

struct LinearOp {
  static constexpr OpInfo info{.name = "linear", .amp = Amp::low, .optional = inputs_at({2, 3})};
  static constexpr std::array policies{Amp::low, Amp::low, Amp::promote, Amp::promote};
  at::ScalarType weight_grad = at::kFloat;  // dtype of dW if a kernel writes it
  Needs<4> needs{};
  bool is_fused = false;
  Saved x = Saved::input(0), weight = Saved::input(1);

  // y = x W^T + b + residual, in the residual's dtype if there is a residual
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias,
                     const at::Tensor& residual) {
    check_linear(x_, weight_, bias);
    if (needs[1]) x = x_;
    weight = weight_;
    is_fused = fused(x_, weight_);
    const auto sizes = with_last(x_.sizes(), weight_.size(0));
    LATHE_CHECK(!residual.defined() || residual.sizes() == at::IntArrayRef(sizes),
                "the residual must be ", describe(at::IntArrayRef(sizes)));
    LATHE_CHECK(!residual.defined() || residual.device() == x_.device(), "x is on ",
                x_.device().str(), ", but the residual is not");
    if (is_fused && (!residual.defined() || kernel_dtype(residual.scalar_type())))
      return linear_pass(x_, weight_, bias, residual, Activation::none, nullptr);
    if (residual.defined() && x_.is_cuda()) {
      const at::Tensor y = gpu_linear_with_residual(x_, weight_, bias, residual);
      if (y.defined()) return y;
    }
    const at::Tensor y = aten_linear(x_, weight_, bias);
    return residual.defined() ? added(residual, y) : y;
  }
  // dx = dy W, dW = dy^T x, db = sum of dy over the rows, dresidual = dy
  Grads<4> backward(const at::Tensor& dy, Needs<4> needs, GradSlots& slots) const {
    if (!is_fused) return composed(dy, needs);
    LinearGradients layer{.dy = dy,
                          .weight = weight.data(),
                          .weight_grad = weight_grad,
                          .slot = 1,
                          .need_weight = needs[1],
                          .need_bias = needs[2]};
    const at::Tensor dx = linear_backward(x.data(), {&layer, 1}, needs[0], slots);
    return {dx, layer.dw, layer.db, needs[3] ? dy : at::Tensor()};
  }
  Grads<4, Variable> backward(const Variable& dy, Needs<4> needs) const {
    return composed(dy, needs);
  }
  template <class T>
  Grads<4, T> composed(const T& dy, Needs<4> needs) const {
    const T w = weight.as<T>();
    const int64_t n = rows_of(dy);
    const auto sizes = with_last(dy.sizes(), w.size(1));
    const T dy_rows = reshape(cast(dy, weight.data().scalar_type()), {n, w.size(0)});
    return {needs[0] ? reshape(product(dy_rows, w), sizes) : T(),
            needs[1] ? product(transpose(dy_rows, 0, 1), reshape(x.as<T>(), {n, w.size(1)})) : T(),
            needs[2] ? bias_gradient(dy_rows) : T(), needs[3] ? dy : T()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor& bias,
                       const at::Tensor& residual, const at::Tensor& y) {
    return linear_flops(x, bias, residual, y);
  }
  static Flops needed(Flops both, Needs<4> needs) { return needed_flops(both, needs); }
};

// A linear layer with a frozen quantized weight, which is dequantized to x's dtype for each matrix
// product.
struct LinearQuantized {
  static constexpr OpInfo info{
      .name = "linear_quantized", .amp = Amp::low, .optional = inputs_at({1})};
  std::shared_ptr<const QuantizedTensor> weight;

  // y = x W^T + b
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias) {
    LATHE_CHECK(x.dim() >= 1 && x.size(-1) == weight->sizes()[1], "the last dim of x must be ",
                weight->sizes()[1]);
    // Multiply without dequantizing if reading the weight dominates the time.
    const bool is_read_bound =
        kernel_ready(x) && gemv_ready(element_of(x.scalar_type()), Element::f32, rows_of(x));
    if (const auto bits = is_read_bound ? weight->view() : std::nullopt)
      return quantized_product(x, *bits, bias);
    return LinearOp{}.forward(x, weight->dequantize(x.scalar_type()), bias, {});
  }
  at::Tensor quantized_product(const at::Tensor& x, const QuantizedView& bits,
                               const at::Tensor& bias) const {
    const int64_t out = weight->sizes()[0], in = weight->sizes()[1];
    const at::Tensor rows = x.contiguous(), b = as_float(bias);
    at::Tensor y = at::empty(with_last(x.sizes(), out), x.options());
    gemv_quantized(matrix_of(rows), bits, rows_of(x), out, in,
                   {.out = matrix_of(y), .bias = floats_of(b)});
    bump_version(y);
    return y;
  }
  // dx = dy W, db = sum of dy over the rows
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    const T rows = reshape(dy, {-1, dy.size(-1)});
    const auto sizes = with_last(dy.sizes(), weight->sizes()[1]);
    const at::ScalarType dtype = type_of(dy);
    return {needs[0] ? reshape(product(rows, constant<T>(weight->dequantize(dtype))), sizes) : T(),
            needs[1] ? sum(rows, 0) : T()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& y) {
    OpFlops f = linear_flops(x, bias, {}, y);
    f.backward.matmul /= 2;  // the weight gets no gradient
    return f;
  }
};

// A linear layer in fp8: q(t) is t scaled and rounded to fp8. Second derivatives treat rounding as
// the identity and do not round dy.
struct LinearFp8 {
  static constexpr OpInfo info{.name = "linear_fp8", .optional = inputs_at({2})};
  std::shared_ptr<const Fp8Scaling> scaling;
  at::ScalarType out, weight_grad;  // dtypes of y and dx, and of dweight
  Saved x{}, weight{};
  Saved x_factor{}, weight_factor{};

  // y = q(x) q(W)^T + b
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias) {
    LATHE_CHECK(weight_.dim() == 2 && x_.dim() >= 1 && x_.size(-1) == weight_.size(1),
                "the last dim of x must be ", weight_.size(weight_.dim() - 1));
    const at::Tensor rows = x_.reshape({-1, x_.size(-1)});
    const Fp8Tensor qx =
        to_fp8(rows, scaling->largest(Fp8Scaling::input, rows), at::kFloat8_e4m3fn);
    const Fp8Tensor qw =
        to_fp8(weight_, scaling->largest(Fp8Scaling::weight, weight_), at::kFloat8_e4m3fn);
    const at::Tensor y =
        fp8_matmul_nt(qx, qw, bias, out).view(with_last(x_.sizes(), weight_.size(0)));
    x = qx.data;
    x_factor = qx.factor;
    weight = qw.data;
    weight_factor = qw.factor;
    return y;
  }
  // dx = q(dy) q(W), dW = q(dy)^T q(x), db = sum of dy over the rows
  Grads<3> backward(const at::Tensor& dy, Needs<3> needs) const {
    const at::Tensor rows = dy.reshape({-1, dy.size(-1)});
    const Fp8Tensor g =
        to_fp8(rows, scaling->largest(Fp8Scaling::gradient, rows), at::kFloat8_e5m2);
    const auto sizes = with_last(dy.sizes(), x.data().size(1));
    return {needs[0]
                ? fp8_matmul_nt(g, {weight.data().t(), weight_factor.data()}, {}, out).view(sizes)
                : at::Tensor(),
            needs[1] ? fp8_matmul_nt({g.data.t(), g.factor}, {x.data().t(), x_factor.data()}, {},
                                     weight_grad)
                     : at::Tensor(),
            needs[2] ? rows.sum(0, /*keepdim=*/false, at::kFloat) : at::Tensor()};
  }
  Grads<3, Variable> backward(const Variable& dy, Needs<3> needs) const {
    const auto sizes = with_last(dy.sizes(), x.data().size(1));
    const auto back = [](const Saved& q, const Saved& factor, at::IntArrayRef shape, size_t input) {
      return Variable((q.data().to(at::kFloat) * factor.data()).view(shape),
                      running_node()->next[input]);
    };
    const Variable rows = reshape(cast(dy, at::kFloat), {-1, dy.sizes().back()});
    const Variable in = back(x, x_factor, sizes, 0),
                   w = back(weight, weight_factor, weight.data().sizes(), 1);
    return {needs[0] ? reshape(matmul(rows, w), sizes) : Variable(),
            needs[1] ? matmul(transpose(rows, 0, 1), reshape(in, x.data().sizes())) : Variable(),
            needs[2] ? sum(rows, 0) : Variable()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor& bias,
                       const at::Tensor& y) {
    return linear_flops(x, bias, {}, y);
  }
  static Flops needed(Flops both, Needs<3> needs) { return needed_flops(both, needs); }
};

}  // namespace

Variable linear(const Variable& x, const Variable& weight, const Variable& bias,
                const Variable& residual) {
  require_defined("linear", {&x, &weight});
  const Precision* kept = precision_of(weight);
  const bool fp8 = kept != nullptr && kept->fp8 && mode().fp8;
  if (kept != nullptr && (kept->quantized || fp8)) {
    const Variable y = kept->quantized ? apply(LinearQuantized{kept->quantized}, x, bias)
                                       : apply(LinearFp8{.scaling = kept->fp8,
                                                         .out = mode().compute,
                                                         .weight_grad = kept->grad_dtype},
                                               x, weight, bias);
    return residual.defined() ? cast(add(residual, y), residual.dtype()) : y;
  }
  return apply(LinearOp{.weight_grad = kernel_grad_dtype(weight)}, x, weight, bias, residual);
}

}  // namespace lathe
