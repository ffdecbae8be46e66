// Implements cumulative sums and products along a dim.
#include <ATen/ops/cumprod.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/select.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "autograd/ops/dims.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/reductions.h"
#include "autograd/ops/shapes.h"

namespace lathe {
namespace {

bool is_low(const at::Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
}
/// Runs f on x, in float32 if x is float16 or bfloat16, and rounds the result once.
template <class F>
at::Tensor in_wide(const at::Tensor& x, F&& f) {
  return is_low(x) ? f(x.to(at::kFloat)).to(x.scalar_type()) : f(x);
}

/// Returns x shifted by one position along a dim. The first element of the result is 1, and the
/// last element of x is dropped.
template <class T>
T shifted(const T& x, int64_t dim) {
  const auto options = [&] {
    if constexpr (std::same_as<T, at::Tensor>)
      return x.options();
    else
      return x.data().options();
  }();
  auto sizes = x.sizes().vec();
  const int64_t n = sizes[static_cast<size_t>(dim)];
  sizes[static_cast<size_t>(dim)] = 1;
  return cat(std::vector<T>{constant<T>(at::ones(sizes, options)), slice(x, dim, 0, n - 1, 1)},
             dim);
}

struct Cumsum {
  static constexpr OpInfo info{.name = "cumsum", .amp = Amp::fp32, .each = {1, 1}};
  int64_t dim;
  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    return in_wide(x, [&](const at::Tensor& v) { return v.cumsum(dim); });
  }
  // dx_i = dy_i + dy_(i+1) + ...
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {flip(cumsum(flip(dy, dim), dim), dim)};
  }
};

/// Returns the cumulative product along a dim. x must have at least one dim.
struct Cumprod {
  static constexpr OpInfo info{.name = "cumprod", .amp = Amp::fp32, .each = {1, 4}, .exact = true};
  int64_t dim;
  Saved x = Saved::input(0), y = Saved::output();
  at::Tensor forward(const at::Tensor& x_) {
    dim = wrap_dim(dim, x_.dim());
    x = x_;
    return y = in_wide(x_, [&](const at::Tensor& v) { return v.cumprod(dim); });
  }
  // If x has no zeros, dx_k = (sum over i >= k of dy_i y_i) / x_k. Otherwise dx_k = (x_0 ...
  // x_(k-1)) s_k, where s_k = dy_k + x_(k+1) s_(k+1). The second formula takes one pass over the
  // dim and no division.
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    const T v = x.as<T>();
    const int64_t n = x.data().size(dim);
    if (n == 0) return {dy};

    const at::Tensor zero = x.data().eq(0);
    if (!zero.any().item<bool>()) return {flip(cumsum(flip(dy * y.as<T>(), dim), dim), dim) / v};

    std::vector<T> s(static_cast<size_t>(n));
    for (int64_t k = n - 1; k >= 0; --k) {
      const T d = select(dy, dim, k);
      if (k == n - 1) {
        s[static_cast<size_t>(k)] = d;
        continue;
      }
      T rest = select(v, dim, k + 1) * s[static_cast<size_t>(k + 1)];
      // If x_(k+1) is 0, this term is 0, even if s_(k+1) is infinite.
      if constexpr (std::same_as<T, at::Tensor>)
        rest = rest.masked_fill(zero.select(dim, k + 1), 0);
      s[static_cast<size_t>(k)] = d + rest;
    }

    const T before = shifted(cumprod(v, dim), dim), dx = before * stack(s, dim);
    if constexpr (std::same_as<T, at::Tensor>)
      return {dx.masked_fill(zero.cumsum(dim).sub_(zero.to(at::kLong)).gt(0), 0)};
    return {dx};
  }
};

/// Returns the product along a dim. x must have at least one dim.
struct Prod {
  static constexpr OpInfo info{.name = "prod", .amp = Amp::fp32, .exact = true};
  int64_t dim;
  bool keepdim;
  bool of_all = false;  ///< whether x is a flattened tensor; its gradient is then 0 if two or more
                        ///< elements are 0, even if other elements are not finite
  Saved x = Saved::input(0), y = Saved::output();
  at::Tensor forward(const at::Tensor& x_) {
    dim = wrap_dim(dim, x_.dim());
    x = x_;
    return y = in_wide(x_, [&](const at::Tensor& v) { return v.prod(dim, keepdim); });
  }
  // If x has no zeros, dx = dy y / x. Otherwise dx_k = dy (x_0 ... x_(k-1)) (x_(k+1) ... x_(n-1)).
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    const T v = x.as<T>(), d = keepdim ? dy : unsqueeze(dy, dim);
    if (x.data().numel() == 0) return {constant<T>(x.data())};
    const at::Tensor zero = x.data().eq(0);
    if (!zero.any().item<bool>())
      return {d * (keepdim ? y.as<T>() : unsqueeze(y.as<T>(), dim)) / v};
    if constexpr (std::same_as<T, at::Tensor>) {
      if (of_all && zero.sum().item<int64_t>() > 1) return {at::zeros_like(v)};
    }
    return {d * shifted(cumprod(v, dim), dim) *
            flip(shifted(cumprod(flip(v, dim), dim), dim), dim)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 2); }
};

}  // namespace

Variable cumsum(const Variable& x, int64_t dim) {
  require_defined("cumsum", {&x});
  if (x.dim() == 0) return reshape(cumsum(reshape(x, {1}), dim), {});
  return apply(Cumsum{.dim = dim}, x);
}
Variable cumprod(const Variable& x, int64_t dim) {
  require_defined("cumprod", {&x});
  if (x.dim() == 0) return reshape(cumprod(reshape(x, {1}), dim), {});
  return apply(Cumprod{.dim = dim}, x);
}
Variable prod(const Variable& x) {
  require_defined("prod", {&x});
  return apply(Prod{.dim = 0, .keepdim = false, .of_all = true}, reshape(x, {-1}));
}
Variable prod(const Variable& x, int64_t dim, bool keepdim) {
  require_defined("prod", {&x});
  if (x.dim() == 0) return prod(reshape(x, {1}), dim);
  return apply(Prod{.dim = dim, .keepdim = keepdim}, x);
}

}  // namespace lathe
