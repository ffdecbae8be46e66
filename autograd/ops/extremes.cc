// Implements maxima, minima and sorting.
#include "autograd/ops/dims.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/reductions.h"
#include "core/error.h"

namespace lathe {
namespace {

/// Returns a mask that is true where x equals y. Two NaNs count as equal.
at::Tensor same(const at::Tensor& x, const at::Tensor& y) {
  return x.eq(y).logical_or_(x.isnan().logical_and_(y.isnan()));
}

template <bool largest>
struct Extreme {
  static constexpr OpInfo info{.name = largest ? "max" : "min", .exact = true};
  Saved x{}, y{};
  at::Tensor forward(const at::Tensor& x_) {
    LATHE_CHECK(x_.numel() > 0, "needs at least one element");
    x = x_;
    return y = largest ? x_.max() : x_.min();
  }
  // dx = dy where x = y; ties share dy equally
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    const at::Tensor mask = same(x.data(), y.data());
    return {dy * constant<T>(mask.to(y.data().scalar_type()).div_(mask.sum()))};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 3); }
};

/// Returns the extreme values along a dim and their positions. x must have at least one dim.
template <bool largest>
struct ExtremeAlong {
  static constexpr OpInfo info{.name = largest ? "max" : "min", .exact = true};
  int64_t dim;
  bool keepdim;
  Saved index{};
  int64_t size = 0;
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    size = x.size(dim);
    LATHE_CHECK(size > 0, "dim ", dim, " has no elements");
    auto [values, places] = largest ? x.max(dim, keepdim) : x.min(dim, keepdim);
    index = keepdim ? places : places.unsqueeze(dim);
    return {values, places};
  }
  // dx[index] = dy
  template <class T>
  Grads<1, T> backward(const GradList<T>& dy, Needs<1>) const {
    return {gather_backward(keepdim ? dy[0] : unsqueeze(dy[0], dim), dim, index.data(), size)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 0); }
};

/// Returns the sorted values and their positions. x must have at least one dim.
struct Sort {
  static constexpr OpInfo info{.name = "sort", .each = {1, 0}};
  int64_t dim;
  bool descending;
  Saved index{};
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    auto [values, places] = x.sort(/*stable=*/true, dim = wrap_dim(dim, x.dim()), descending);
    index = places;
    return {values, places};
  }
  // dx[index] = dy
  template <class T>
  Grads<1, T> backward(const GradList<T>& dy, Needs<1>) const {
    return {gather_backward(dy[0], dim, index.data(), index.data().size(dim))};
  }
};

using Found = std::pair<Variable, at::Tensor>;
/// Calls `along` on x. If x has no dims, it is viewed as a tensor of one dim for the call.
template <class F>
Found with_dim(const Variable& x, int64_t dim, bool keepdim, F&& along) {
  if (x.dim() > 0) return along(x, dim);
  const auto [values, places] = along(reshape(x, {1}), wrap_dim(dim, 0));
  if (!keepdim) return {values, places};
  return {reshape(values, {}), places.reshape({})};
}

template <bool largest>
Found extreme(const Variable& x, int64_t dim, bool keepdim) {
  return with_dim(x, dim, keepdim, [&](const Variable& v, int64_t d) -> Found {
    const auto out = apply(ExtremeAlong<largest>{.dim = d, .keepdim = keepdim}, v);
    return {out[0], out[1].data()};
  });
}

}  // namespace

namespace {

/// Returns the dim, counted from 0, along which `what` searches; nullopt stands for all dims.
/// Throws if there is no element to find.
std::optional<int64_t> searched_dim(const char* what, const Variable& x,
                                    std::optional<int64_t> dim) {
  require_defined(what, {&x});
  if (dim) dim = wrap_dim(*dim, x.dim());
  const int64_t elements = dim && x.dim() > 0 ? x.data().size(*dim) : x.numel();
  LATHE_CHECK(elements > 0, what, "(", describe(x.data()), "): needs at least one element");
  return dim;
}

}  // namespace

Variable max(const Variable& x) { return apply(Extreme<true>{}, x); }
Variable min(const Variable& x) { return apply(Extreme<false>{}, x); }
Found max(const Variable& x, int64_t dim, bool keepdim) {
  require_defined("max", {&x});
  return extreme<true>(x, dim, keepdim);
}
Found min(const Variable& x, int64_t dim, bool keepdim) {
  require_defined("min", {&x});
  return extreme<false>(x, dim, keepdim);
}
at::Tensor argmax(const Variable& x, std::optional<int64_t> dim, bool keepdim) {
  const auto d = searched_dim("argmax", x, dim);
  return x.data().argmax(d, keepdim);
}
at::Tensor argmin(const Variable& x, std::optional<int64_t> dim, bool keepdim) {
  const auto d = searched_dim("argmin", x, dim);
  return x.data().argmin(d, keepdim);
}
Found sort(const Variable& x, int64_t dim, bool descending) {
  require_defined("sort", {&x});
  return with_dim(x, dim, /*keepdim=*/true, [&](const Variable& v, int64_t d) -> Found {
    const auto out = apply(Sort{.dim = d, .descending = descending}, v);
    return {out[0], out[1].data()};
  });
}

}  // namespace lathe
