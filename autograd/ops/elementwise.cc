// Implements elementwise ops. Broadcasting needs no code here: the engine sums a gradient to its
// input's shape.
#include <cmath>
#include <functional>
#include <numbers>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros_like.h>

#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/linear_gpu.h"
#include "autograd/ops/small.h"
#include "core/blocks.h"
#include "core/device.h"
#include "core/elementwise.h"

namespace lathe {
namespace {

struct Add {
  static constexpr OpInfo info{.name = "add", .each = {1, 0}};
  ChainForm chain() const { return {ChainOp::add}; }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    // ATen's kernel for inputs of two dtypes is slower than Lathe's.
    const bool is_mixed = a.scalar_type() == at::kFloat && b.scalar_type() != at::kFloat;
    if (is_mixed && gpu_kernel_ready(a) && gpu_kernel_ready(b) && a.sizes() == b.sizes())
      return added(a, b);
    return elementwise(std::plus<>(), a, b);
  }
  // da = dy, db = dy
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2>) const {
    return {dy, dy};
  }
};

struct Sub {
  static constexpr OpInfo info{.name = "sub"};
  ChainForm chain() const { return {ChainOp::sub}; }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    return elementwise(std::minus<>(), a, b);
  }
  // da = dy, db = -dy
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {dy, needs[1] ? -dy : T()};
  }
};

struct Mul {
  static constexpr OpInfo info{.name = "mul", .each = {1, 2}};
  Needs<2> needs{};
  Saved a = Saved::input(0), b = Saved::input(1);
  ChainForm chain() const { return {ChainOp::mul}; }
  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) {
    if (needs[1]) a = a_;
    if (needs[0]) b = b_;
    return elementwise(std::multiplies<>(), a_, b_);
  }
  // da = dy * b, db = dy * a
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {needs[0] ? dy * b.as<T>() : T(), needs[1] ? dy * a.as<T>() : T()};
  }
};

struct Div {
  static constexpr OpInfo info{.name = "div", .each = {1, 4}, .exact = true};
  Needs<2> needs{};
  Saved a = Saved::input(0), b = Saved::input(1);
  ChainForm chain() const { return {ChainOp::div}; }
  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) {
    if (needs[1]) a = a_;
    return elementwise(std::divides<>(), a_, b = b_);
  }
  // da = dy / b, db = -dy * a / b^2
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    const T da = dy / b.as<T>();
    return {da, needs[1] ? -da * a.as<T>() / b.as<T>() : T()};
  }
};

struct AddScalar {
  static constexpr OpInfo info{.name = "add_scalar", .each = {1, 0}};
  double c;
  ChainForm chain() const { return {ChainOp::add, c}; }
  at::Tensor forward(const at::Tensor& x) { return elementwise(std::plus<>(), x, c); }
  // dx = dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy};
  }
};

struct MulScalar {
  static constexpr OpInfo info{.name = "mul_scalar"};
  double c;
  ChainForm chain() const { return {ChainOp::mul, c}; }
  at::Tensor forward(const at::Tensor& x) { return elementwise(std::multiplies<>(), x, c); }
  // dx = c * dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * c};
  }
};

struct Exp {
  static constexpr OpInfo info{.name = "exp", .amp = Amp::fp32};
  Saved y = Saved::output();
  ChainForm chain() const { return {ChainOp::exp}; }
  at::Tensor forward(const at::Tensor& x) { return y = x.exp(); }
  // dx = dy * y
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * y.as<T>()};
  }
};

struct Log {
  static constexpr OpInfo info{.name = "log", .amp = Amp::fp32, .exact = true};
  Saved x = Saved::input(0);
  ChainForm chain() const { return {ChainOp::log}; }
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).log(); }
  // dx = dy / x
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy / x.as<T>()};
  }
};

struct Sqrt {
  static constexpr OpInfo info{.name = "sqrt", .each = {1, 2}, .exact = true};
  Saved y = Saved::output();
  ChainForm chain() const { return {ChainOp::sqrt}; }
  at::Tensor forward(const at::Tensor& x) { return y = x.sqrt(); }
  // dx = dy / (2 y)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy / (y.as<T>() * 2.0)};
  }
};

struct Pow {
  static constexpr OpInfo info{.name = "pow", .amp = Amp::fp32, .each = {1, 3}, .exact = true};
  double exponent;
  Saved x = Saved::input(0);
  ChainForm chain() const { return {ChainOp::pow, exponent}; }
  at::Tensor forward(const at::Tensor& x_) {
    x = x_;
    return pow(x_, exponent);
  }
  // dx = dy * e * x^(e-1); zero for e = 0, even at x = 0
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if (exponent == 0) return {constant<T>(at::zeros_like(x.data()))};
    return {dy * pow(x.as<T>(), exponent - 1) * exponent};
  }
};

/// Returns whether a kernel of chains computes the gradient of an activation whose input or result
/// is x.
bool gradient_by_kernel(const at::Tensor& dy, const at::Tensor& x) {
  return has_elementwise(x) && dy.scalar_type() == x.scalar_type() && dy.sizes() == x.sizes();
}

struct Tanh {
  static constexpr OpInfo info{.name = "tanh", .each = {1, 3}};
  Saved y = Saved::output();
  ChainForm chain() const { return {ChainOp::tanh}; }
  at::Tensor forward(const at::Tensor& x) {
    return y = has_elementwise(x) ? elementwise(ChainOp::own_tanh, x)
                                  : in_blocks(LATHE_ATEN(tanh, t[0]), {x});
  }
  // dx = dy * (1 - y^2)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {gradient_by_kernel(dy, y.data()) ? elementwise(ChainOp::own_tanh_grad, dy, y.data())
                                               : at::tanh_backward(dy, y.data())};
    return {dy - dy * y.as<T>() * y.as<T>()};
  }
};

struct Erf {
  static constexpr OpInfo info{.name = "erf", .each = {1, 5}};
  Saved x = Saved::input(0);
  ChainForm chain() const { return {ChainOp::erf}; }
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).erf(); }
  // dx = dy * 2/sqrt(pi) * exp(-x^2)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * exp(-(x.as<T>() * x.as<T>())) * (2 * std::numbers::inv_sqrtpi)};
  }
};

struct Sigmoid {
  static constexpr OpInfo info{.name = "sigmoid", .each = {4, 3}};
  Saved y = Saved::output();
  ChainForm chain() const { return {ChainOp::sigmoid}; }
  at::Tensor forward(const at::Tensor& x) { return y = in_blocks(LATHE_ATEN(sigmoid, t[0]), {x}); }
  // dx = dy * y * (1 - y)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) return {at::sigmoid_backward(dy, y.data())};
    const T dyy = dy * y.as<T>();
    return {dyy - dyy * y.as<T>()};
  }
};

struct Relu {
  static constexpr OpInfo info{.name = "relu"};
  Saved y = Saved::output();
  ChainForm chain() const { return {ChainOp::relu}; }
  at::Tensor forward(const at::Tensor& x) { return y = x.relu(); }
  // dx = dy, 0 where y <= 0. Mask dy instead of multiplying it by 0, which would turn an infinite
  // dy into NaN.
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) return {at::threshold_backward(dy, y.data(), 0)};
    return {masked_fill(dy, y.data().le(0), 0)};
  }
};

struct Silu {
  static constexpr OpInfo info{.name = "silu", .each = {5, 6}};
  Saved x = Saved::input(0);
  ChainForm chain() const { return {ChainOp::silu}; }
  at::Tensor forward(const at::Tensor& x_) {
    x = x_;
    return has_elementwise(x_) ? elementwise(ChainOp::own_silu, x_)
                               : in_blocks(LATHE_ATEN(silu, t[0]), {x_});
  }
  // s = sigmoid(x):  dx = dy * s * (1 + x * (1 - s))
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {gradient_by_kernel(dy, x.data())
                  ? elementwise(ChainOp::own_silu_grad, dy, x.data())
                  : in_blocks(LATHE_ATEN(silu_backward, t[0], t[1]), {dy, x.data()})};
    const T v = x.as<T>(), s = sigmoid(v);
    return {dy * s * (v - v * s + 1.0)};
  }
};

struct MaskedFill {
  static constexpr OpInfo info{.name = "masked_fill", .each = {0, 0}};
  Saved mask;
  double value;
  ChainForm chain() const { return {.op = ChainOp::fill, .number = value, .mask = mask.data()}; }
  at::Tensor forward(const at::Tensor& x) { return x.masked_fill(mask.data(), value); }
  // dx = dy, zero under the mask
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {masked_fill(dy, mask.data(), 0)};
  }
};

struct GeluOp {
  static constexpr OpInfo info{.name = "gelu", .each = {8, 14}};
  Gelu form;
  Saved x = Saved::input(0);
  const char* approximate() const { return form == Gelu::tanh ? "tanh" : "none"; }

  ChainForm chain() const { return {form == Gelu::tanh ? ChainOp::gelu : ChainOp::gelu_exact}; }
  at::Tensor forward(const at::Tensor& x_) {
    x = x_;
    const bool by_kernel = form == Gelu::tanh && has_elementwise(x_);
    if (by_kernel) return elementwise(ChainOp::own_gelu, x_);
    return in_blocks(LATHE_ATEN(gelu, t[0], approximate()), {x_});
  }
  // tanh:  y = x/2 (1 + t), t = tanh(k (x + c x^3))
  //   dx = dy * (1/2 (1 + t) + x/2 (1 - t^2) k (1 + 3 c x^2))
  // exact:  y = x P(x), where P is the normal distribution function and p its density
  //   dx = dy * (P(x) + x p(x))
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    // Beyond +-30 the derivative is 0 or 1 even in float64, and powers of x would overflow.
    if constexpr (std::same_as<T, at::Tensor>) {
      if (form == Gelu::tanh && gpu_kernel_ready(x.data()) &&
          dy.scalar_type() == x.data().scalar_type())
        return {gpu_gelu_backward(x.data(), dy, /*sums=*/nullptr)};
      if (form == Gelu::tanh && gradient_by_kernel(dy, x.data()))
        return {elementwise(ChainOp::own_gelu_grad, dy, x.data())};
      return {in_blocks(LATHE_ATEN(gelu_backward, t[0], t[1].clamp(-30, 30), approximate()),
                        {dy, x.data()})};
    }

    const at::Tensor far = x.data().abs().gt(30);
    const T v = masked_fill(x.as<T>(), far, 0);

    const T dx = [&] {
      if (form == Gelu::exact) {
        const double density = 0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
        return dy *
               ((erf(v * (1 / std::numbers::sqrt2)) + 1.0) * 0.5 + v * exp(v * v * -0.5) * density);
      }
      const double k = std::numbers::sqrt2 * std::numbers::inv_sqrtpi, c = 0.044715;
      const T t = tanh((v + v * v * v * c) * k);
      return dy * ((t + 1.0) * 0.5 + v * 0.5 * (1.0 - t * t) * (v * v * (3 * c) + 1.0) * k);
    }();
    return {masked_fill(dx, far, 0) + masked_fill(dy, x.data().le(30), 0)};
  }
};

struct Cast {
  static constexpr OpInfo info{.name = "cast", .each = {0, 0}};
  at::ScalarType to, from = to;
  ChainForm chain() const { return {.op = ChainOp::copy, .dtype = to}; }
  at::Tensor forward(const at::Tensor& x) {
    from = x.scalar_type();
    return x.to(to);
  }
  // dx = dy in x's dtype
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {cast(dy, from)};
  }
};

}  // namespace

Variable add(const Variable& a, const Variable& b) { return apply(Add{}, a, b); }
Variable sub(const Variable& a, const Variable& b) { return apply(Sub{}, a, b); }
Variable mul(const Variable& a, const Variable& b) { return apply(Mul{}, a, b); }
Variable div(const Variable& a, const Variable& b) { return apply(Div{}, a, b); }
Variable add_scalar(const Variable& x, double c) { return apply(AddScalar{c}, x); }
Variable mul_scalar(const Variable& x, double c) { return apply(MulScalar{c}, x); }
Variable neg(const Variable& x) { return x * -1; }
Variable exp(const Variable& x) { return apply(Exp{}, x); }
Variable log(const Variable& x) { return apply(Log{}, x); }
Variable sqrt(const Variable& x) { return apply(Sqrt{}, x); }
Variable pow(const Variable& x, double exponent) { return apply(Pow{.exponent = exponent}, x); }
Variable tanh(const Variable& x) { return apply(Tanh{}, x); }
Variable erf(const Variable& x) { return apply(Erf{}, x); }
Variable sigmoid(const Variable& x) { return apply(Sigmoid{}, x); }
Variable relu(const Variable& x) { return apply(Relu{}, x); }
Variable silu(const Variable& x) { return apply(Silu{}, x); }
Variable masked_fill(const Variable& x, const at::Tensor& mask, double value) {
  return apply(MaskedFill{.mask = mask, .value = value}, x);
}
Variable gelu(const Variable& x, Gelu form) { return apply(GeluOp{.form = form}, x); }
Variable cast(const Variable& x, at::ScalarType dtype) {
  require_defined("cast", {&x});
  if (x.dtype() == dtype) return x;
  // Only floating-point values have gradients.
  return apply(Cast{.to = dtype}, at::isFloatingType(dtype) ? x : x.detach());
}

}  // namespace lathe
