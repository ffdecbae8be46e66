// Reductions, and what is normalised by one. Sums of low-precision tensors accumulate in float32 inside ATen.
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/dtype.h"

namespace lathe {
namespace {

using Dims = c10::SmallVector<int64_t, 5>;

/// Dims as given, or all of them (none given); wrapped and checked.
Dims wrapped(at::OptionalIntArrayRef dims, int64_t ndim) {
  if (dims && dims->empty()) dims.reset();
  Dims out;
  for (int64_t i = 0; !dims && i < ndim; ++i) out.push_back(i);
  for (int64_t i = 0; dims && i < static_cast<int64_t>(dims->size()); ++i) out.push_back(wrap_dim((*dims)[i], ndim));
  return out;
}

struct Sum {
  static constexpr OpInfo info{.name = "sum", .amp = Amp::fp32};
  Dims dims;
  bool keepdim;
  Dims sizes{};

  at::Tensor forward(const at::Tensor& x) {
    sizes = Dims(x.sizes().begin(), x.sizes().end());
    dims = wrapped(at::OptionalIntArrayRef(dims), x.dim());
    return x.dim() == 0 ? x.clone() : x.sum(dims, keepdim);
  }
  // dx = dy, repeated along the summed dims
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    Dims kept = sizes;
    for (size_t i = 0; i < dims.size() && !kept.empty(); ++i) kept[static_cast<size_t>(dims[i])] = 1;
    return {dy.reshape(kept).expand(sizes)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 0); }
};

struct SumTo {
  static constexpr OpInfo info{.name = "sum_to", .amp = Amp::fp32};
  Dims to;
  Dims from{};

  at::Tensor forward(const at::Tensor& x) {
    from = Dims(x.sizes().begin(), x.sizes().end());
    LATHE_CHECK(at::is_expandable_to(to, x.sizes()), describe(to), " does not broadcast to ", describe(x.sizes()));
    return at::sum_to(x, to, /*always_return_non_view=*/true);
  }
  // dx = dy, repeated along the summed dims
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy.expand(from)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 0); }
};

struct Amax {
  static constexpr OpInfo info{.name = "amax"};
  int64_t dim;
  bool keepdim;
  Saved x{};

  at::Tensor forward(const at::Tensor& x_) {
    dim = wrap_dim(dim, x_.dim());
    return (x = x_).amax(dim, keepdim);
  }
  // dx = dy where x is the largest, shared among ties
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    const at::Tensor& v = x.data();
    at::Tensor mask = v.eq(v.amax(dim, true)).to(v.scalar_type());
    mask = mask / mask.sum(dim, true);
    return {(keepdim ? dy : dy.unsqueeze(dim)) * constant<T>(mask)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 4); }
};

struct Softmax {
  static constexpr OpInfo info{.name = "softmax", .amp = Amp::fp32};
  int64_t dim;
  Saved y{};

  at::Tensor forward(const at::Tensor& x) { return y = x.softmax(dim = wrap_dim(dim, x.dim())); }
  // dx = y * (dy - sum(y * dy))
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    const T ydy = y.as<T>() * dy;
    return {ydy - y.as<T>() * ydy.sum(dim, /*keepdim=*/true)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 5, 4); }
};

struct LogSoftmax {
  static constexpr OpInfo info{.name = "log_softmax", .amp = Amp::fp32};
  int64_t dim;
  Saved y{};

  at::Tensor forward(const at::Tensor& x) { return y = x.log_softmax(dim = wrap_dim(dim, x.dim())); }
  // dx = dy - exp(y) * sum(dy)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy - y.as<T>().exp() * dy.sum(dim, /*keepdim=*/true)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 5, 4); }
};

}  // namespace

Variable sum(const Variable& x, at::OptionalIntArrayRef dims, bool keepdim) {
  return apply(Sum{.dims = dims ? wrapped(dims, x.dim()) : Dims(), .keepdim = keepdim}, x);
}
Variable mean(const Variable& x, at::OptionalIntArrayRef dims, bool keepdim) {
  double n = 1;
  for (int64_t d : wrapped(dims, x.dim())) n *= x.dim() > 0 ? static_cast<double>(x.size(d)) : 1;
  return mul_scalar(sum(x, dims, keepdim), 1 / n);
}
Variable amax(const Variable& x, int64_t dim, bool keepdim) { return apply(Amax{.dim = dim, .keepdim = keepdim}, x); }
Variable softmax(const Variable& x, int64_t dim) { return apply(Softmax{.dim = dim}, x); }
Variable log_softmax(const Variable& x, int64_t dim) { return apply(LogSoftmax{.dim = dim}, x); }
Variable sum_to(const Variable& x, at::IntArrayRef sizes) {
  return apply(SumTo{.to = Dims(sizes.begin(), sizes.end())}, x);
}

}  // namespace lathe
