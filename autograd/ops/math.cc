// Implements elementwise functions.
#include "autograd/ops/math.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>
#include <ATen/ops/xlogy.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "autograd/ops/formula.h"
#include "core/blocks.h"
#include "core/dtype.h"

namespace lathe {
namespace {

struct Abs {
  static constexpr OpInfo info{.name = "abs", .elementwise = true};
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).abs(); }
  // dx = dy * sign(x)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * constant<T>(x.data().sign())};
  }
};

struct Sign {
  static constexpr OpInfo info{.name = "sign", .each = {1, 0}, .elementwise = true};
  at::Tensor forward(const at::Tensor& x) { return x.sign(); }
  // dx = 0
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {at::zeros_like(dy)};
    else
      return {T(at::zeros_like(dy.data()))};
  }
};

struct Sin {
  static constexpr OpInfo info{.name = "sin", .each = {4, 5}, .elementwise = true};
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).sin(); }
  // dx = dy * cos(x)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * cos(x.as<T>())};
  }
};

struct Cos {
  static constexpr OpInfo info{.name = "cos", .each = {4, 6}, .elementwise = true};
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).cos(); }
  // dx = -dy * sin(x)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {-(dy * sin(x.as<T>()))};
  }
};

struct Log1p {
  static constexpr OpInfo info{
      .name = "log1p", .amp = Amp::fp32, .each = {2, 2}, .exact = true, .elementwise = true};
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).log1p(); }
  // dx = dy / (1 + x)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy / (x.as<T>() + 1.0)};
  }
};

struct Expm1 {
  static constexpr OpInfo info{
      .name = "expm1", .amp = Amp::fp32, .each = {2, 2}, .elementwise = true};
  Saved y = Saved::output();
  at::Tensor forward(const at::Tensor& x) { return y = x.expm1(); }
  // dx = dy * (y + 1)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * (y.as<T>() + 1.0)};
  }
};

struct Rsqrt {
  static constexpr OpInfo info{.name = "rsqrt", .amp = Amp::fp32, .each = {2, 4}};
  Saved y = Saved::output();
  ChainForm chain() const { return {ChainOp::rsqrt}; }
  at::Tensor forward(const at::Tensor& x) { return y = in_blocks(LATHE_ATEN(rsqrt, t[0]), {x}); }
  // dx = -dy * y^3 / 2
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * pow(y.as<T>(), 3) * -0.5};
  }
};

struct Reciprocal {
  static constexpr OpInfo info{.name = "reciprocal", .amp = Amp::fp32, .each = {1, 3}};
  Saved y = Saved::output();
  ChainForm chain() const { return {ChainOp::reciprocal}; }
  at::Tensor forward(const at::Tensor& x) { return y = x.reciprocal(); }
  // dx = -dy * y^2
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {-(dy * (y.as<T>() * y.as<T>()))};
  }
};

struct Xlogy {
  static constexpr OpInfo info{
      .name = "xlogy", .amp = Amp::fp32, .each = {2, 4}, .exact = true, .elementwise = true};
  Saved x = Saved::input(0), y = Saved::input(1);
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& y_) {
    return at::xlogy(x = x_, y = y_);
  }
  // dx = dz * log(y), 0 where x = 0 and y <= 0;  dy = dz * x / y
  template <class T>
  Grads<2, T> backward(const T& dz, Needs<2> needs) const {
    return {needs[0]
                ? masked_fill(xlogy(dz, y.as<T>()), x.data().eq(0).logical_and(y.data().le(0)), 0)
                : T(),
            needs[1] ? dz * x.as<T>() / y.as<T>() : T()};
  }
};

std::optional<at::Scalar> bound_for(const at::Tensor& x, std::optional<double> value) {
  return value ? std::optional(scalar_for(x, *value)) : std::nullopt;
}

struct Clamp {
  static constexpr OpInfo info{.name = "clamp", .each = {2, 2}, .exact = true, .elementwise = true};
  std::optional<double> min, max;
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) {
    LATHE_CHECK(min || max, "needs a lower or an upper bound");
    return at::clamp(x = x_, bound_for(x_, min), bound_for(x_, max));
  }
  // dx = dy where min <= x <= max
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    at::Tensor within = min ? x.data().ge(*min) : x.data().le(*max);
    if (min && max) within.logical_and_(x.data().le(*max));
    return {masked_fill(dy, within.logical_not(), 0)};
  }
};

struct ClampTo {
  static constexpr OpInfo info{
      .name = "clamp", .each = {2, 4}, .optional = inputs_at({1, 2}), .elementwise = true};
  Saved x{}, min{}, max{};
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& min_, const at::Tensor& max_) {
    LATHE_CHECK(min_.defined() || max_.defined(), "needs a lower or an upper bound");
    min = min_;
    max = max_;
    const auto optional = [](const at::Tensor& t) {
      return t.defined() ? std::optional(t) : std::nullopt;
    };
    return at::clamp(x = x_, optional(min_), optional(max_));
  }
  // dx = dy where min <= x <= max, dmin = dy where x < min < max, dmax = dy where x > max or max <
  // min
  template <class T>
  Grads<3, T> backward(const T& dy, Needs<3> needs) const {
    const at::Tensor &v = x.data(), &low = min.data(), &high = max.data();
    const auto only = [&](const at::Tensor& mask) {
      return masked_fill(dy, mask.logical_not(), 0);
    };
    const bool both = low.defined() && high.defined();
    const at::Tensor within = both            ? v.ge(low).logical_and(v.le(high))
                              : low.defined() ? v.ge(low)
                                              : v.le(high);
    return {needs[0] ? only(within) : T(),
            needs[1] ? only(both ? v.lt(low).logical_and(low.lt(high)) : v.lt(low)) : T(),
            needs[2] ? only(both ? v.gt(high).logical_or(high.lt(low)) : v.gt(high)) : T()};
  }
};

template <bool largest>
struct Pairwise {
  static constexpr OpInfo info{
      .name = largest ? "maximum" : "minimum", .each = {1, 2}, .exact = true, .elementwise = true};
  Saved a = Saved::input(0), b = Saved::input(1);
  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) {
    a = a_;
    b = b_;
    return largest ? at::maximum(a_, b_) : at::minimum(a_, b_);
  }
  // the larger (or smaller) operand gets dy; in a tie, both get dy / 2
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    const at::Tensor &u = a.data(), &v = b.data();
    const T shared = where(u.eq(v), dy * 0.5, dy);
    return {needs[0] ? masked_fill(shared, largest ? u.lt(v) : u.gt(v), 0) : T(),
            needs[1] ? masked_fill(shared, largest ? u.gt(v) : u.lt(v), 0) : T()};
  }
};

struct Where {
  static constexpr OpInfo info{.name = "where", .each = {0, 0}};
  Saved condition;
  ChainForm chain() const { return {.op = ChainOp::select, .mask = condition.data()}; }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor& c = condition.data();
    LATHE_CHECK(c.defined() && c.scalar_type() == at::kBool, "the condition must be bool, not ",
                describe(c));
    return at::where(c, a, b);
  }
  // da = dy where the condition holds, db = dy elsewhere
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {needs[0] ? masked_fill(dy, condition.data().logical_not(), 0) : T(),
            needs[1] ? masked_fill(dy, condition.data(), 0) : T()};
  }
};

Variable like(const Variable& x, double value) {
  LATHE_CHECK(x.defined(), "where: an input is an undefined Variable; it must hold a tensor");
  // Placeholders of fused() are meta tensors, but the fused op runs on the CPU.
  const at::Device device = mode().chain != nullptr ? at::Device(at::kCPU) : x.data().device();
  at::TensorOptions options = x.data().options().device(device);
  // As in PyTorch, an integer x and a number that is not whole, or not finite, give floating-point
  // results, and a bool x and a whole number give integers.
  const bool is_whole = scalar_for(x.data(), value).isIntegral(/*includeBool=*/false);
  if (c10::isIntegralType(x.dtype(), /*includeBool=*/true) && !is_whole)
    options = options.dtype(at::kFloat);
  else if (x.dtype() == at::kBool)
    options = options.dtype(at::kLong);
  return Variable(at::full({}, value, options));
}

}  // namespace

Variable abs(const Variable& x) { return apply(Abs{}, x); }
Variable sign(const Variable& x) { return apply(Sign{}, x); }
Variable sin(const Variable& x) { return apply(Sin{}, x); }
Variable cos(const Variable& x) { return apply(Cos{}, x); }
Variable log1p(const Variable& x) { return apply(Log1p{}, x); }
Variable expm1(const Variable& x) { return apply(Expm1{}, x); }
Variable rsqrt(const Variable& x) { return apply(Rsqrt{}, x); }
Variable reciprocal(const Variable& x) { return apply(Reciprocal{}, x); }
Variable xlogy(const Variable& x, const Variable& y) { return apply(Xlogy{}, x, y); }
Variable clamp(const Variable& x, std::optional<double> min, std::optional<double> max) {
  return apply(Clamp{.min = min, .max = max}, x);
}
Variable clamp(const Variable& x, const Variable& min, const Variable& max) {
  return apply(ClampTo{}, x, min, max);
}
Variable maximum(const Variable& a, const Variable& b) { return apply(Pairwise<true>{}, a, b); }
Variable minimum(const Variable& a, const Variable& b) { return apply(Pairwise<false>{}, a, b); }
Variable where(const at::Tensor& condition, const Variable& a, const Variable& b) {
  return apply(Where{.condition = condition}, a, b);
}
Variable where(const at::Tensor& condition, const Variable& a, double b) {
  return where(condition, a, like(a, b));
}
Variable where(const at::Tensor& condition, double a, const Variable& b) {
  return where(condition, like(b, a), b);
}

at::Tensor eq(const Variable& a, const Variable& b) { return a == b; }
at::Tensor ne(const Variable& a, const Variable& b) { return a != b; }
at::Tensor lt(const Variable& a, const Variable& b) { return a < b; }
at::Tensor le(const Variable& a, const Variable& b) { return a <= b; }
at::Tensor gt(const Variable& a, const Variable& b) { return a > b; }
at::Tensor ge(const Variable& a, const Variable& b) { return a >= b; }

}  // namespace lathe
