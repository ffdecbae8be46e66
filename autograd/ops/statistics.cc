// Implements statistics of all elements or along dims. The ops compute in float32 or wider.
#include <cmath>
#include <limits>

#include <ATen/ops/abs.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/std.h>
#include <ATen/ops/var.h>
#include <ATen/ops/zeros_like.h>

#include "autograd/ops/dims.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/math.h"
#include "autograd/ops/reductions.h"

namespace lathe {
namespace {

at::ScalarType wide(const Saved& x) {
  return x.data().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The dims that an op reduces, and the shape of its result with these dims kept.
struct Reduced {
  Dims dims;
  bool keepdim;
  Dims kept{};
  Saved x = Saved::input(0);

  const at::Tensor& take(const at::Tensor& x_) {
    kept = keepdim_sizes(x_.sizes(), dims);
    return x = x_;
  }
  double count() const { return reduced_count(x.data().sizes(), dims); }
};

struct Logsumexp : Reduced {
  static constexpr OpInfo info{.name = "logsumexp", .amp = Amp::fp32, .exact = true};
  Saved y = Saved::output();
  at::Tensor forward(const at::Tensor& x_) { return y = at::logsumexp(take(x_), dims, keepdim); }
  // dx = dy * e^(x - y)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {reshape(dy, kept) * exp(x.as<T>() - reshape(y.as<T>(), kept))};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 4, 4); }
};

/// Returns the gradient of x, given the gradient g of its variance in the shape `kept`: 2 g (x -
/// mean) / (n - correction). If n <= correction, the gradient of a variance of all elements
/// (`of_all`) is PyTorch's: infinite where x differs from the mean, and NaN elsewhere.
template <class T>
T variance_grad(const Reduced& r, const T& g, double correction, bool of_all) {
  const T v = cast(r.x.as<T>(), wide(r.x));
  if (of_all && r.count() <= correction) {
    const at::Tensor& x = r.x.data();
    const at::Tensor away =
        at::full_like(x, std::numeric_limits<double>::infinity(), x.options().dtype(wide(r.x)));
    return g *
           constant<T>(away.masked_fill(x.eq(x.mean()), std::numeric_limits<double>::quiet_NaN()));
  }
  return g * (v - mean(v, at::IntArrayRef(r.dims), true)) * (2 / (r.count() - correction));
}

struct Var : Reduced {
  static constexpr OpInfo info{.name = "var", .amp = Amp::fp32};
  double correction = 1;
  bool of_all = false;
  at::Tensor forward(const at::Tensor& x_) {
    return at::var(take(x_), dims, at::Scalar(correction), keepdim);
  }
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {variance_grad(*this, reshape(dy, kept), correction, of_all)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 4, 4); }
};

struct Std : Reduced {
  static constexpr OpInfo info{.name = "std", .amp = Amp::fp32, .exact = true};
  double correction = 1;
  bool of_all = false;
  Saved y = Saved::output();
  at::Tensor forward(const at::Tensor& x_) {
    return y = at::std(take(x_), dims, at::Scalar(correction), keepdim);
  }
  // dvar = dy / (2 y), 0 where y is 0
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    const T g = masked_fill(dy / (y.as<T>() * 2.0), y.data().eq(0), 0);
    return {variance_grad(*this, reshape(g, kept), correction, of_all)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 4, 4); }
};

struct PNorm : Reduced {
  static constexpr OpInfo info{.name = "norm", .amp = Amp::fp32, .exact = true};
  double p = 2;
  Saved y = Saved::output();
  at::Tensor forward(const at::Tensor& x_) {
    return y = at::linalg_vector_norm(take(x_), p, dims, keepdim);
  }
  // dx = dy * sign(x) * |x|^(p-1) * y^(1-p), 0 where y is 0. Infinite p: dy * sign(x) where |x| =
  // y, shared among ties.
  template <class T>
  Grads<1, T> backward(const T& dy_, Needs<1>) const {
    const at::Tensor& v = x.data();
    const at::Tensor norm = y.data().reshape(kept), none = norm.eq(0);
    if (p == 0) return {constant<T>(at::zeros_like(v))};
    const T dy = reshape(dy_, kept);
    if (p == 1) return {dy * constant<T>(v.sign())};
    if (std::isinf(p)) {
      const at::Tensor size = v.abs();
      const at::Tensor here = size.eq(norm).logical_or_(size.isnan().logical_and_(norm.isnan()));
      return {dy * constant<T>(v.sign() * here / here.sum(dims, true))};
    }
    const T top = reshape(y.as<T>(), kept);
    if (p == 2) return {x.as<T>() * masked_fill(dy / top, none, 0)};
    const T scale = masked_fill(dy * pow(top, 1 - p), none, 0);
    // At x = 0, |x|^(p-1) is infinite if p < 1, and its derivative is infinite if p < 2. There, the
    // gradient is defined as 0.
    const at::Tensor zero = v.eq(0);
    return {masked_fill(pow(abs(masked_fill(x.as<T>(), zero, 1)), p - 1), zero, 0) *
            constant<T>(v.sign()) * scale};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 2, 4); }
};

}  // namespace

Variable logsumexp(const Variable& x, at::OptionalIntArrayRef dims, bool keepdim) {
  require_defined("logsumexp", {&x});
  return apply(Logsumexp{{.dims = wrapped(dims, x.dim()), .keepdim = keepdim}}, x);
}
Variable var(const Variable& x, at::OptionalIntArrayRef dims, double correction, bool keepdim) {
  require_defined("var", {&x});
  const bool of_all = !dims || x.dim() == 0;
  return apply(Var{{.dims = wrapped(dims, x.dim()), .keepdim = keepdim}, correction, of_all}, x);
}
Variable std(const Variable& x, at::OptionalIntArrayRef dims, double correction, bool keepdim) {
  require_defined("std", {&x});
  const bool of_all = !dims || x.dim() == 0;
  return apply(Std{{.dims = wrapped(dims, x.dim()), .keepdim = keepdim}, correction, of_all}, x);
}
Variable norm(const Variable& x, double p, at::OptionalIntArrayRef dims, bool keepdim) {
  require_defined("norm", {&x});
  return apply(PNorm{{.dims = wrapped(dims, x.dim()), .keepdim = keepdim}, p}, x);
}

}  // namespace lathe
