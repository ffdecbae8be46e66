// Implements ops that write their result into their input. They save the result, a mask, or
// nothing.
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/where.h>

#include "autograd/ops/formula.h"
#include "autograd/ops/math.h"
#include "autograd/recompute.h"
#include "core/blocks.h"
#include "core/dtype.h"

namespace lathe {
namespace {

/// Returns a handle through which a const tensor can be written.
at::Tensor written(const at::Tensor& x) { return x; }

struct ReluInPlace {
  static constexpr OpInfo info{.name = "relu_", .elementwise = true};
  Saved y = Saved::output();
  at::Tensor forward(const at::Tensor& x) { return y = written(x).relu_(); }
  // dx = dy, 0 where y <= 0
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) return {at::threshold_backward(dy, y.data(), 0)};
    return {masked_fill(dy, y.data().le(0), 0)};
  }
};

struct LeakyReluInPlace {
  static constexpr OpInfo info{.name = "leaky_relu_", .elementwise = true};
  double slope;
  Saved y = Saved::output();
  at::Tensor forward(const at::Tensor& x) {
    LATHE_CHECK(slope >= 0, "the gradient can't be computed from the result with a slope of ",
                slope, "; use leaky_relu");
    at::Tensor t = x;
    return y = at::leaky_relu_(t, slope);
  }
  // dx = dy where y > 0, slope * dy elsewhere
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {at::leaky_relu_backward(dy, y.data(), slope, /*self_is_result=*/true)};
    return {where(y.data().gt(0), dy, dy * slope)};
  }
};

struct TanhInPlace {
  static constexpr OpInfo info{.name = "tanh_", .each = {1, 3}, .elementwise = true};
  Saved y = Saved::output();
  at::Tensor forward(const at::Tensor& x) { return y = written(x).tanh_(); }
  // dx = dy * (1 - y^2)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) return {at::tanh_backward(dy, y.data())};
    return {dy - dy * y.as<T>() * y.as<T>()};
  }
};

struct SigmoidInPlace {
  static constexpr OpInfo info{.name = "sigmoid_", .each = {4, 3}, .elementwise = true};
  Saved y = Saved::output();
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor in = written(x);
    return y = in_blocks(LATHE_ATEN(sigmoid, t[0]), {in}, in);
  }
  // dx = dy * y * (1 - y)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) return {at::sigmoid_backward(dy, y.data())};
    const T dyy = dy * y.as<T>();
    return {dyy - dyy * y.as<T>()};
  }
};

struct MaskedFillInPlace {
  static constexpr OpInfo info{.name = "masked_fill_", .each = {0, 0}, .elementwise = true};
  Saved mask;
  double value;
  at::Tensor forward(const at::Tensor& x) { return written(x).masked_fill_(mask.data(), value); }
  // dx = dy, zero under the mask
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {masked_fill(dy, mask.data(), 0)};
  }
};

struct AddInPlace {
  static constexpr OpInfo info{.name = "add_", .each = {1, 0}, .elementwise = true};
  at::Tensor forward(const at::Tensor& x, const at::Tensor& b) { return written(x).add_(b); }
  // dx = dy, db = dy
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2>) const {
    return {dy, dy};
  }
};

struct MulInPlace {
  static constexpr OpInfo info{.name = "mul_", .elementwise = true};
  double c;
  at::Tensor forward(const at::Tensor& x) { return written(x).mul_(c); }
  // dx = c * dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * c};
  }
};

/// Applies an op to x and replaces x by the result.
template <class Op, class... Others>
Variable& in_place(Op op, Variable& x, const Others&... others) {
  const at::Tensor& t = x.data();
  LATHE_CHECK(t.defined(), Op::info.name, ": x is undefined");
  if (mode().grad && (x.requires_grad() || (others.requires_grad() || ...))) {
    LATHE_CHECK(x.as_leaf() == nullptr, Op::info.name, "(", describe(t), "): the parameter ",
                x.node() ? x.node()->name() : "",
                " can't be overwritten while a graph is recorded; change its values under NoGrad, "
                "or assign the result to another Variable");
    if (mode().recording != nullptr) mode().recording->release(t);
    LATHE_CHECK(t.use_count() == 1 && t.storage().use_count() == 1, Op::info.name, "(", describe(t),
                "): its memory is also held by another handle, a view, or an op that saved it for "
                "backward; use the op that is not in place");
  }

  // If no graph is recorded, only the values change, and `x` keeps its position in the graph.
  Variable y = apply(std::move(op), x, others...);
  if (y.requires_grad()) x = std::move(y);
  return x;
}

}  // namespace

Variable& relu_(Variable& x) { return in_place(ReluInPlace{}, x); }
Variable& leaky_relu_(Variable& x, double negative_slope) {
  return in_place(LeakyReluInPlace{.slope = negative_slope}, x);
}
Variable& tanh_(Variable& x) { return in_place(TanhInPlace{}, x); }
Variable& sigmoid_(Variable& x) { return in_place(SigmoidInPlace{}, x); }
Variable& masked_fill_(Variable& x, const at::Tensor& mask, double value) {
  return in_place(MaskedFillInPlace{.mask = mask, .value = value}, x);
}
Variable& add_(Variable& x, const Variable& b) { return in_place(AddInPlace{}, x, b); }
Variable& mul_(Variable& x, double c) { return in_place(MulInPlace{.c = c}, x); }

}  // namespace lathe
