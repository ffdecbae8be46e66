// Implements reductions and softmax. Sums of float16 and bfloat16 tensors accumulate in float32,
// both in ATen and in core/sum.h.
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax_backward_data.h>

#include "autograd/ops/dims.h"
#include "autograd/ops/formula.h"
#include "core/rows.h"
#include "core/sum.h"

namespace lathe {
namespace {

struct Sum {
  static constexpr OpInfo info{.name = "sum", .amp = Amp::fp32, .each = {1, 0}};
  Dims dims;
  bool keepdim;
  Dims sizes{};
  std::optional<ChainForm> row_chain(const Variable& x) const {
    if (!keepdim || !is_of_rows(x.dim())) return std::nullopt;
    return ChainForm{.op = ChainOp::row_sum};
  }

  at::Tensor forward(const at::Tensor& x) {
    sizes = dims_of(x.sizes());
    dims = wrapped(at::OptionalIntArrayRef(dims), x.dim());
    if (x.dim() > 0) return fixed_sum(x, dims, keepdim);
    return x.is_floating_point() ? x.clone()
                                 : x.to(at::kLong, /*non_blocking=*/false, /*copy=*/true);
  }
  /// Returns whether the op reduces only the last of `ndim` dims.
  bool is_of_rows(int64_t ndim) const { return dims.size() == 1 && dims[0] == ndim - 1; }
  /// Returns dy repeated along the dims that were reduced.
  template <class T>
  T repeated(const T& dy) const {
    return expand(reshape(dy, keepdim_sizes(sizes, dims)), sizes);
  }
  // dx = dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {repeated(dy)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 0); }
};

struct Mean {
  static constexpr OpInfo info{.name = "mean", .amp = Amp::fp32, .each = {1, 0}};
  Sum sum;
  double count = 1;  // number of elements that are averaged
  std::optional<ChainForm> row_chain(const Variable& x) const {
    if (!sum.row_chain(x)) return std::nullopt;
    return ChainForm{.op = ChainOp::row_mean, .number = static_cast<double>(x.size(-1))};
  }

  // float16 and bfloat16 are summed in float32, and the mean is rounded once.
  at::Tensor forward(const at::Tensor& x) {
    LATHE_CHECK(
        at::isFloatingType(x.scalar_type()), "the mean of ", describe(x),
        " is not defined, since its elements are not floating-point numbers; cast it first");
    sum.sizes = dims_of(x.sizes());
    count = reduced_count(x.sizes(), sum.dims);
    if (x.dim() == 0) return x.clone();
    // On CPUs, the mean of all elements or of rows is a sum (core/sum.h) followed by a division, as
    // in ATen.
    const bool is_of_all = count == static_cast<double>(x.numel());
    if (!x.is_cpu() || !(is_of_all || (sum.is_of_rows(x.dim()) && has_row_sums(x))))
      return x.mean(sum.dims, sum.keepdim);
    return (fixed_sum(at_least_float32(x), sum.dims, sum.keepdim) / count).to(x.scalar_type());
  }
  // dx = dy / count
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {sum.repeated(dy * (1 / count))};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 0); }
};

struct SumTo {
  static constexpr OpInfo info{.name = "sum_to", .amp = Amp::fp32};
  Dims to;
  Dims from{};

  at::Tensor forward(const at::Tensor& x) {
    from = dims_of(x.sizes());
    LATHE_CHECK(at::is_expandable_to(to, x.sizes()), describe(to), " does not broadcast to ",
                describe(x.sizes()));
    return fixed_sum_to(x, to);
  }
  // dx = dy, repeated along the summed dims
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {expand(dy, from)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 0); }
};

struct Amax {
  static constexpr OpInfo info{.name = "amax", .exact = true};
  int64_t dim;
  bool keepdim;
  Saved x = Saved::input(0);

  at::Tensor forward(const at::Tensor& x_) {
    dim = wrap_dim(dim, x_.dim());
    return (x = x_).amax(dim, keepdim);
  }
  // dx = dy where x is the largest; tied elements share dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    const at::Tensor& v = x.data();
    at::Tensor mask = v.eq(v.amax(dim, true)).to(v.scalar_type());
    mask = mask / mask.sum(dim, true);
    return {(keepdim ? dy : unsqueeze(dy, dim)) * constant<T>(mask)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 4); }
};

/// Returns the form of softmax or log softmax of x in a chain. Returns nullopt unless `dim` is the
/// last dim.
std::optional<ChainForm> last_dim_form(ChainOp op, int64_t dim, const Variable& x) {
  if (dim != -1 && dim != x.dim() - 1) return std::nullopt;
  return ChainForm{.op = op};
}

/// Returns whether a row kernel computes softmax or log softmax of x over a dim.
bool are_rows(const at::Tensor& x, int64_t dim) { return dim == x.dim() - 1 && has_row_kernels(x); }

struct Softmax {
  static constexpr OpInfo info{.name = "softmax", .amp = Amp::fp32, .each = {5, 4}};
  int64_t dim;
  Saved y = Saved::output();
  std::optional<ChainForm> row_chain(const Variable& x) const {
    return last_dim_form(ChainOp::softmax, dim, x);
  }

  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    return y = are_rows(x, dim) ? row_softmax(x) : x.softmax(dim);
  }
  // dx = y * (dy - sum(y * dy))
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {are_rows(y.data(), dim)
                  ? row_softmax_gradient(dy, y.data())
                  : at::_softmax_backward_data(dy, y.data(), dim, y.data().scalar_type())};
    const T ydy = y.as<T>() * dy;
    return {ydy - y.as<T>() * sum(ydy, dim, /*keepdim=*/true)};
  }
};

struct LogSoftmax {
  static constexpr OpInfo info{
      .name = "log_softmax", .amp = Amp::fp32, .each = {5, 4}, .exact = true};
  int64_t dim;
  Saved y = Saved::output();
  std::optional<ChainForm> row_chain(const Variable& x) const {
    return last_dim_form(ChainOp::log_softmax, dim, x);
  }

  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    return y = are_rows(x, dim) ? row_log_softmax(x) : x.log_softmax(dim);
  }
  // dx = dy - exp(y) * sum(dy)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {are_rows(y.data(), dim)
                  ? row_log_softmax_gradient(dy, y.data())
                  : at::_log_softmax_backward_data(dy, y.data(), dim, y.data().scalar_type())};
    return {dy - exp(y.as<T>()) * sum(dy, dim, /*keepdim=*/true)};
  }
};

}  // namespace

Variable sum(const Variable& x, at::OptionalIntArrayRef dims, bool keepdim) {
  require_defined("sum", {&x});
  return apply(Sum{.dims = dims ? wrapped(dims, x.dim()) : Dims(), .keepdim = keepdim}, x);
}
Variable mean(const Variable& x, at::OptionalIntArrayRef dims, bool keepdim) {
  require_defined("mean", {&x});
  return apply(Mean{.sum = {.dims = wrapped(dims, x.dim()), .keepdim = keepdim}}, x);
}
Variable amax(const Variable& x, int64_t dim, bool keepdim) {
  return apply(Amax{.dim = dim, .keepdim = keepdim}, x);
}
Variable softmax(const Variable& x, int64_t dim) { return apply(Softmax{.dim = dim}, x); }
Variable log_softmax(const Variable& x, int64_t dim) { return apply(LogSoftmax{.dim = dim}, x); }
Variable sum_to(const Variable& x, at::IntArrayRef sizes) {
  return apply(SumTo{.to = dims_of(sizes)}, x);
}

}  // namespace lathe
