// Elementwise ops. The engine sums a gradient to its input's shape, so broadcasting needs no care here.
#include <cmath>
#include <numbers>

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include "autograd/op.h"
#include "autograd/ops.h"

namespace lathe {
namespace {

struct Add {
  static constexpr OpInfo info{.name = "add"};
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
  // da = dy, db = dy
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2>) const {
    return {dy, dy};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 0); }
};

struct Sub {
  static constexpr OpInfo info{.name = "sub"};
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) { return a.sub(b); }
  // da = dy, db = -dy
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {dy, needs[1] ? -dy : T()};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 1); }
};

struct Mul {
  static constexpr OpInfo info{.name = "mul"};
  Saved a{}, b{};
  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) { return (a = a_).mul(b = b_); }
  // da = dy * b, db = dy * a
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {needs[0] ? dy * b.as<T>() : T(), needs[1] ? dy * a.as<T>() : T()};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 2); }
};

struct Div {
  static constexpr OpInfo info{.name = "div"};
  Saved a{}, b{};
  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) { return (a = a_).div(b = b_); }
  // da = dy / b, db = -dy * a / b^2
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    const T da = dy / b.as<T>();
    return {da, needs[1] ? -da * a.as<T>() / b.as<T>() : T()};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 4); }
};

struct AddScalar {
  static constexpr OpInfo info{.name = "add_scalar"};
  double c;
  at::Tensor forward(const at::Tensor& x) { return x.add(c); }
  // dx = dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 0); }
};

struct MulScalar {
  static constexpr OpInfo info{.name = "mul_scalar"};
  double c;
  at::Tensor forward(const at::Tensor& x) { return x.mul(c); }
  // dx = c * dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * c};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 1); }
};

struct Exp {
  static constexpr OpInfo info{.name = "exp", .amp = Amp::fp32};
  Saved y{};
  at::Tensor forward(const at::Tensor& x) { return y = x.exp(); }
  // dx = dy * y
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * y.as<T>()};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 1); }
};

struct Log {
  static constexpr OpInfo info{.name = "log", .amp = Amp::fp32};
  Saved x{};
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).log(); }
  // dx = dy / x
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy / x.as<T>()};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 1); }
};

struct Sqrt {
  static constexpr OpInfo info{.name = "sqrt"};
  Saved y{};
  at::Tensor forward(const at::Tensor& x) { return y = x.sqrt(); }
  // dx = dy / (2 y)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy / (y.as<T>() * 2.0)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 2); }
};

struct Pow {
  static constexpr OpInfo info{.name = "pow", .amp = Amp::fp32};
  double exponent;
  Saved x{};
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).pow(exponent); }
  // dx = dy * e * x^(e-1); zero for e = 0, also at x = 0
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if (exponent == 0) return {dy * 0.0};
    return {dy * x.as<T>().pow(exponent - 1) * exponent};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 3); }
};

struct Tanh {
  static constexpr OpInfo info{.name = "tanh"};
  Saved y{};
  at::Tensor forward(const at::Tensor& x) { return y = x.tanh(); }
  // dx = dy * (1 - y^2)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy - dy * y.as<T>() * y.as<T>()};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 3); }
};

struct Erf {
  static constexpr OpInfo info{.name = "erf"};
  Saved x{};
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).erf(); }
  // dx = dy * 2/sqrt(pi) * exp(-x^2)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * (-(x.as<T>() * x.as<T>())).exp() * (2 * std::numbers::inv_sqrtpi)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 5); }
};

struct Sigmoid {
  static constexpr OpInfo info{.name = "sigmoid"};
  Saved y{};
  at::Tensor forward(const at::Tensor& x) { return y = x.sigmoid(); }
  // dx = dy * y * (1 - y)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    const T dyy = dy * y.as<T>();
    return {dyy - dyy * y.as<T>()};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 4, 3); }
};

struct Relu {
  static constexpr OpInfo info{.name = "relu"};
  Saved y{};
  at::Tensor forward(const at::Tensor& x) { return y = x.relu(); }
  // dx = dy where y > 0
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * constant<T>(y.data().gt(0).to(y.data().scalar_type()))};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 1); }
};

struct GeluOp {
  static constexpr OpInfo info{.name = "gelu"};
  Gelu form;
  Saved x{};
  const char* approximate() const { return form == Gelu::tanh ? "tanh" : "none"; }

  at::Tensor forward(const at::Tensor& x_) { return at::gelu(x = x_, approximate()); }
  // tanh: y = x/2 (1 + t), t = tanh(k (x + c x^3));  dx = dy * (1/2 (1 + t) + x/2 (1 - t^2) k (1 + 3 c x^2))
  // exact: y = x P(x), P the normal distribution function, p its density;  dx = dy * (P(x) + x p(x))
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) {
      return {at::gelu_backward(dy, x.data(), approximate())};
    } else {
      const T v = x.as<T>();
      if (form == Gelu::exact) {
        const double density = 0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
        return {dy * (((v * (1 / std::numbers::sqrt2)).erf() + 1.0) * 0.5 + v * (v * v * -0.5).exp() * density)};
      }
      const double k = std::numbers::sqrt2 * std::numbers::inv_sqrtpi, c = 0.044715;
      const T t = ((v + v * v * v * c) * k).tanh();
      return {dy * ((t + 1.0) * 0.5 + v * 0.5 * (1.0 - t * t) * (v * v * (3 * c) + 1.0) * k)};
    }
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 8, 14); }
};

struct Cast {
  static constexpr OpInfo info{.name = "cast"};
  at::ScalarType to, from = to;
  at::Tensor forward(const at::Tensor& x) {
    from = x.scalar_type();
    return x.to(to);
  }
  // dx = dy in x's dtype
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy.to(from)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&) { return {}; }
};

}  // namespace

Variable add(const Variable& a, const Variable& b) { return apply(Add{}, a, b); }
Variable sub(const Variable& a, const Variable& b) { return apply(Sub{}, a, b); }
Variable mul(const Variable& a, const Variable& b) { return apply(Mul{}, a, b); }
Variable div(const Variable& a, const Variable& b) { return apply(Div{}, a, b); }
Variable add_scalar(const Variable& x, double c) { return apply(AddScalar{c}, x); }
Variable mul_scalar(const Variable& x, double c) { return apply(MulScalar{c}, x); }
Variable neg(const Variable& x) { return mul_scalar(x, -1); }
Variable exp(const Variable& x) { return apply(Exp{}, x); }
Variable log(const Variable& x) { return apply(Log{}, x); }
Variable sqrt(const Variable& x) { return apply(Sqrt{}, x); }
Variable pow(const Variable& x, double exponent) { return apply(Pow{.exponent = exponent}, x); }
Variable tanh(const Variable& x) { return apply(Tanh{}, x); }
Variable erf(const Variable& x) { return apply(Erf{}, x); }
Variable sigmoid(const Variable& x) { return apply(Sigmoid{}, x); }
Variable relu(const Variable& x) { return apply(Relu{}, x); }
Variable silu(const Variable& x) { return mul(x, sigmoid(x)); }
Variable gelu(const Variable& x, Gelu form) { return apply(GeluOp{.form = form}, x); }
Variable cast(const Variable& x, at::ScalarType dtype) { return x.dtype() == dtype ? x : apply(Cast{.to = dtype}, x); }

}  // namespace lathe
