// Matrix products: where the FLOPs are.
#include <ATen/ops/addmm.h>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/dtype.h"

namespace lathe {
namespace {

struct Matmul {
  static constexpr OpInfo info{.name = "matmul", .amp = Amp::low};
  Saved a{}, b{};

  at::Tensor forward(const at::Tensor& a_, const at::Tensor& b_) {
    LATHE_CHECK(a_.dim() >= 2 && b_.dim() >= 2, "both need at least 2 dims");
    LATHE_CHECK(a_.size(-1) == b_.size(-2), "the inner sizes ", a_.size(-1), " and ", b_.size(-2), " differ");
    return (a = a_).matmul(b = b_);
  }
  // da = dy b^T, db = a^T dy; the engine sums broadcast batch dims
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {needs[0] ? dy.matmul(b.as<T>().transpose(-2, -1)) : T(),
            needs[1] ? a.as<T>().transpose(-2, -1).matmul(dy) : T()};
  }
  static OpFlops flops(const at::Tensor& a, const at::Tensor&, const at::Tensor& y) {
    const double forward = 2.0 * static_cast<double>(y.numel()) * static_cast<double>(a.size(-1));
    return {.forward = {.matmul = forward}, .backward = {.matmul = 2 * forward}};
  }
};

struct LinearOp {
  static constexpr OpInfo info{.name = "linear", .amp = Amp::low};
  Saved x{}, weight{};

  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias) {
    LATHE_CHECK(weight_.dim() == 2 && x_.dim() >= 1 && x_.size(-1) == weight_.size(1), "the last dim of x must be ",
                weight_.size(weight_.dim() - 1));
    x = x_;
    weight = weight_;
    const at::Tensor rows = x_.reshape({-1, x_.size(-1)});
    at::Tensor y = bias.defined() ? at::addmm(bias, rows, weight_.t()) : rows.mm(weight_.t());
    if (x_.dim() == 2) return y;
    auto sizes = x_.sizes().vec();
    sizes.back() = weight_.size(0);
    return y.view(sizes);
  }
  // dx = dy W, dW = dy^T x, db = sum of dy over the rows
  template <class T>
  Grads<3, T> backward(const T& dy, Needs<3> needs) const {
    const T w = weight.as<T>(), in = x.as<T>();
    const int64_t out_size = w.size(0), in_size = w.size(1);
    const T dy_rows = dy.reshape({-1, out_size});
    return {needs[0] ? dy_rows.matmul(w).reshape(in.sizes()) : T(),
            needs[1] ? dy_rows.transpose(0, 1).matmul(in.reshape({-1, in_size})) : T(),
            needs[2] ? dy_rows.sum(0) : T()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor& bias, const at::Tensor& y) {
    const double forward = 2.0 * static_cast<double>(y.numel()) * static_cast<double>(x.size(-1));
    const double add = bias.defined() ? static_cast<double>(y.numel()) : 0;
    return {.forward = {forward, add}, .backward = {2 * forward, add}};
  }
};

}  // namespace

Variable matmul(const Variable& a, const Variable& b) { return apply(Matmul{}, a, b); }
Variable linear(const Variable& x, const Variable& weight, const Variable& bias) {
  return apply(LinearOp{}, x, weight, bias);
}

}  // namespace lathe
