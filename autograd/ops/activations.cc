// Implements activations. The first-order backward of most activations is a kernel of ATen. A
// comment in each op states the formula of the gradient. Under create_graph, backward applies this
// formula.
#include <ATen/ops/elu.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardswish_backward.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/softplus_backward.h>
#include <ATen/ops/where.h>

#include "autograd/ops/formula.h"
#include "autograd/ops/math.h"
#include "core/blocks.h"

namespace lathe {
namespace {

struct Softplus {
  static constexpr OpInfo info{
      .name = "softplus", .amp = Amp::fp32, .each = {4, 5}, .elementwise = true};
  double beta, threshold;
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) {
    return in_blocks(LATHE_ATEN(softplus, t[0], beta, threshold), {x = x_});
  }
  // dx = dy where beta x > threshold, dy * sigmoid(beta x) elsewhere
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {
          in_blocks(LATHE_ATEN(softplus_backward, t[0], t[1], beta, threshold), {dy, x.data()})};
    return {where((x.data() * beta).gt(threshold), dy, dy * sigmoid(x.as<T>() * beta))};
  }
};

struct LogSigmoid {
  static constexpr OpInfo info{
      .name = "logsigmoid", .amp = Amp::fp32, .each = {4, 5}, .elementwise = true};
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) {
    return in_blocks(LATHE_ATEN(log_sigmoid, t[0]), {x = x_});
  }
  // dx = dy * sigmoid(-x)
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const {
    return {dy * in_blocks(
                     [](at::TensorList t, at::Tensor* y) {
                       return y != nullptr ? at::neg_out(*y, t[0]).sigmoid_()
                                           : t[0].neg().sigmoid_();
                     },
                     {x.data()})};
  }
  // The second derivative is -s (1 - s) with s = sigmoid(-x). When s is near 1, 1 - s loses
  // precision. For x < 0, s is therefore computed as 1 - sigmoid(x).
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const {
    const at::Tensor below = x.data().lt(0);
    const Variable small = sigmoid(where(below, x.as<Variable>(), -x.as<Variable>()));
    return {dy * where(below, 1.0 - small, small)};
  }
};

struct Elu {
  static constexpr OpInfo info{.name = "elu", .each = {3, 3}, .elementwise = true};
  double alpha;
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) {
    return in_blocks(LATHE_ATEN(elu, t[0], alpha), {x = x_});
  }
  // dx = dy above 0, dy * alpha e^x below
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {in_blocks(LATHE_ATEN(elu_backward, t[0], alpha, 1, 1, /*is_result=*/false, t[1]),
                        {dy, x.data()})};
    // At 0 the derivative is alpha and, as in PyTorch, the second derivative is 0.
    const at::Tensor above = x.data().gt(0), outside = x.data().ge(0);
    return {where(above, dy, dy * exp(masked_fill(x.as<T>(), outside, 0)) * alpha)};
  }
};

struct LeakyRelu {
  static constexpr OpInfo info{.name = "leaky_relu", .elementwise = true};
  double slope;
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) { return at::leaky_relu(x = x_, slope); }
  // dx = dy above 0, slope * dy below
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {at::leaky_relu_backward(dy, x.data(), slope, /*self_is_result=*/false)};
    return {where(x.data().gt(0), dy, dy * slope)};
  }
};

struct Hardswish {
  static constexpr OpInfo info{.name = "hardswish", .each = {4, 4}, .elementwise = true};
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) {
    x = x_;
    // ATen's GPU kernel multiplies by 1/6 rounded to float32, even if x is float64.
    if (x_.is_cuda() && x_.scalar_type() == at::kDouble)
      return (x_ + 3).clamp_(0, 6).mul_(x_).div_(6);
    return at::hardswish(x_);
  }
  // dx = 0 for x <= -3, dy for x >= 3, dy * (x / 3 + 1/2) between them
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>) return {at::hardswish_backward(dy, x.data())};
    const T inside = masked_fill(dy * (x.as<T>() * (1.0 / 3) + 0.5), x.data().le(-3), 0);
    return {where(x.data().ge(3), dy, inside)};
  }
};

struct Mish {
  static constexpr OpInfo info{.name = "mish", .each = {8, 12}, .elementwise = true};
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) { return in_blocks(LATHE_ATEN(mish, t[0]), {x = x_}); }
  // t = tanh(softplus(x)):  dx = dy * (t + x * sigmoid(x) * (1 - t^2))
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {in_blocks(
          [](at::TensorList t, at::Tensor* y) {
            return y != nullptr ? y->copy_(at::mish_backward(t[0], t[1]))
                                : at::mish_backward(t[0], t[1]);
          },
          {dy, x.data()})};
    const T v = x.as<T>(), t = tanh(softplus(v));
    return {dy * (t + v * sigmoid(v) * (1.0 - t * t))};
  }
};

}  // namespace

Variable softplus(const Variable& x, double beta, double threshold) {
  return apply(Softplus{.beta = beta, .threshold = threshold}, x);
}
Variable logsigmoid(const Variable& x) { return apply(LogSigmoid{}, x); }
Variable elu(const Variable& x, double alpha) { return apply(Elu{.alpha = alpha}, x); }
Variable leaky_relu(const Variable& x, double negative_slope) {
  return apply(LeakyRelu{.slope = negative_slope}, x);
}
Variable hardswish(const Variable& x) { return apply(Hardswish{}, x); }
Variable mish(const Variable& x) { return apply(Mish{}, x); }

}  // namespace lathe
