// Implements convolutions of images with ATen's kernels: oneDNN's on CPUs, cuDNN's on CUDA. ATen
// chooses the kernel by shapes, dtype and the number of threads, so the bits depend on the number
// of threads. With a fixed number of threads, repeated passes in one process give the same bits.
// This was tested on an AVX-512 CPU in float32 and bfloat16, with one and with two threads
// (tests/nn/conv_and_recurrent_test.cc).
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>

#include "autograd/ops/image.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/product.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {
namespace {

/// Converts a factor of a convolution to the dtype in which the convolution multiplies. CPUs use
/// float32 for bfloat16 if multiplied_as() returns float32, as for other matrix products, and
/// always for float16: ATen has no fast backward for float16 on any CPU. Even on a CPU with
/// AVX512_FP16, it is 140 times slower than in float32.
at::Tensor factor(const at::Tensor& t) {
  const bool wide = t.scalar_type() == at::kHalf || (t.scalar_type() == at::kBFloat16 &&
                                                     multiplied_as(Element::bf16) != Element::bf16);
  return wide && t.is_cpu() ? t.to(at::kFloat) : t;
}

void check_options(const Conv2dOptions& o) {
  LATHE_CHECK(
      at_least(o.stride, 1) && at_least(o.dilation, 1) && at_least(o.padding, 0) && o.groups >= 1,
      "stride, dilation and groups must be at least 1, and padding at least 0");
}

/// Checks that x [B, C, H, W] and a weight fit together, and returns the shape of the result.
ImageSizes result_sizes(at::IntArrayRef x, at::IntArrayRef weight, const Conv2dOptions& o) {
  check_options(o);
  LATHE_CHECK(x.size() == 4 && weight.size() == 4,
              "x must be [B, C, H, W] and weight [O, C / groups, kh, kw]");
  LATHE_CHECK(x[1] == weight[1] * o.groups, "x has ", x[1], " channels, but the weight is for ",
              weight[1] * o.groups);
  LATHE_CHECK(weight[0] % o.groups == 0, weight[0], " output channels can't be divided into ",
              o.groups, " groups");
  const auto out = [](int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                      int64_t dilation) {
    const int64_t reach = dilation * (kernel - 1) + 1, room = size + 2 * padding;
    LATHE_CHECK(kernel >= 1 && reach <= room, "a kernel of reach ", reach,
                " (with its dilation) is larger than the padded image of ", room);
    return (room - reach) / stride + 1;
  };
  return {x[0], weight[0], out(x[2], weight[2], o.stride.h, o.padding.h, o.dilation.h),
          out(x[3], weight[3], o.stride.w, o.padding.w, o.dilation.w)};
}

/// Returns the FLOPs of one pass over y [B, O, H', W'] with a weight of `sizes`.
double product_flops(const at::Tensor& y, at::IntArrayRef sizes) {
  return 2.0 * static_cast<double>(y.numel()) *
         static_cast<double>(c10::multiply_integers(sizes.slice(1)));
}

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const Conv2dOptions& o) {
  const at::Tensor in = factor(x).contiguous(), w = factor(weight).contiguous();
  const auto b = bias.defined() ? std::optional(bias.to(in.scalar_type())) : std::nullopt;
  return at::convolution(in, w, b, both(o.stride), both(o.padding), both(o.dilation),
                         /*transposed=*/false, {0, 0}, o.groups);
}

/// Returns the gradient of x or of the weight. ATen takes both x and the weight, but reads only the
/// shape of the one whose gradient it computes.
at::Tensor convolve_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const Conv2dOptions& o, bool of_x) {
  const auto grads = at::convolution_backward(
      dy, x, weight, std::nullopt, both(o.stride), both(o.padding), both(o.dilation),
      /*transposed=*/false, {0, 0}, o.groups, {of_x, !of_x, false});
  return of_x ? std::get<0>(grads) : std::get<1>(grads);
}

void check_dy(const at::Tensor& dy, const ImageSizes& wanted) {
  LATHE_CHECK(dy.sizes() == at::IntArrayRef(wanted), "dy must be ",
              describe(at::IntArrayRef(wanted)));
}

// Returns the gradient in the dtype of the computation, so that the gradient is rounded only once,
// by the engine.
at::Tensor conv2d_input_grad(const at::Tensor& dy_, const at::Tensor& weight, at::IntArrayRef sizes,
                             const Conv2dOptions& o) {
  check_dy(dy_, result_sizes(sizes, weight.sizes(), o));
  const at::Tensor dy = factor(dy_).contiguous();
  return convolve_backward(dy, at::empty(sizes, dy.options()), factor(weight).contiguous(), o,
                           /*of_x=*/true);
}
at::Tensor conv2d_weight_grad(const at::Tensor& dy_, const at::Tensor& x, at::IntArrayRef sizes,
                              const Conv2dOptions& o) {
  check_dy(dy_, result_sizes(x.sizes(), sizes, o));
  const at::Tensor dy = factor(dy_).contiguous();
  return convolve_backward(dy, factor(x).contiguous(), at::empty(sizes, dy.options()), o,
                           /*of_x=*/false);
}

struct Conv2d {
  static constexpr OpInfo info{.name = "conv2d", .amp = Amp::low, .optional = inputs_at({2})};
  static constexpr std::array policies{Amp::low, Amp::low, Amp::promote};
  Conv2dOptions options;
  ImageSizes sizes{};
  Needs<3> needs{};
  Saved x = Saved::input(0), weight = Saved::input(1);

  // y[b, o, i, j] = bias[o] + sum over c, p, q of weight[o, c, p, q] x[b, c, stride i + dilation p
  // - padding, ...]
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias) {
    result_sizes(x_.sizes(), weight_.sizes(), options);
    LATHE_CHECK(x_.scalar_type() == weight_.scalar_type(), "x and weight must have one dtype");
    LATHE_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight_.size(0)),
                "bias must have shape [", weight_.size(0), "]");
    sizes = image_sizes(x_.sizes());
    if (needs[1]) x = x_;
    return convolve(x_, weight = weight_, bias, options).to(x_.scalar_type());
  }
  // dx, dweight: the adjoints; dbias = sum of dy over all dims except dim 1
  template <class T>
  Grads<3, T> backward(const T& dy_, Needs<3> needs) const {
    const T dy = cast(dy_, weight.data().scalar_type());
    const at::ScalarType wide = dy_.dtype() == at::kDouble ? at::kDouble : at::kFloat;
    return {needs[0] ? conv2d_input_grad(dy, weight.as<T>(), sizes, options) : T(),
            needs[1] ? conv2d_weight_grad(dy, x.as<T>(), weight.data().sizes(), options) : T(),
            needs[2] ? sum(cast(dy_, wide), {0, 2, 3}) : T()};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& y) {
    const double products = product_flops(y, weight.sizes()),
                 add = bias.defined() ? static_cast<double>(y.numel()) : 0;
    return {.forward = {products, add}, .backward = {2 * products, add}};
  }
  static Flops needed(Flops both, Needs<3> needs) { return needed_flops(both, needs); }
};

// The input gradient is linear in dy and in the weight, so the gradients of this pass are the other
// two passes: conv2d and conv2d_weight_grad.
struct Conv2dInputGrad {
  static constexpr OpInfo info{.name = "conv2d_input_grad", .amp = Amp::low};
  ImageSizes sizes;
  Conv2dOptions options;
  Saved dy = Saved::input(0), weight = Saved::input(1);

  at::Tensor forward(const at::Tensor& dy_, const at::Tensor& weight_) {
    return conv2d_input_grad(dy = dy_, weight = weight_, sizes, options).to(dy_.scalar_type());
  }
  // ddy = conv2d(g, weight), dweight = conv2d_weight_grad(dy, g)
  template <class T>
  Grads<2, T> backward(const T& g, Needs<2> needs) const {
    return {needs[0] ? forward_pass(g, weight.as<T>(), options) : T(),
            needs[1] ? conv2d_weight_grad(dy.as<T>(), g, weight.data().sizes(), options) : T()};
  }
  static at::Tensor forward_pass(const at::Tensor& x, const at::Tensor& w, const Conv2dOptions& o) {
    return convolve(x, w, {}, o);
  }
  static Variable forward_pass(const Variable& x, const Variable& w, const Conv2dOptions& o) {
    return conv2d(x, w, {}, o);
  }
  static OpFlops flops(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor&) {
    const double products = product_flops(dy, weight.sizes());
    return {.forward = {products}, .backward = {2 * products}};
  }
  static Flops needed(Flops both, Needs<2> needs) { return needed_flops(both, needs); }
};

struct Conv2dWeightGrad {
  static constexpr OpInfo info{.name = "conv2d_weight_grad", .amp = Amp::low};
  ImageSizes sizes;
  Conv2dOptions options;
  Saved dy = Saved::input(0), x = Saved::input(1);

  at::Tensor forward(const at::Tensor& dy_, const at::Tensor& x_) {
    return conv2d_weight_grad(dy = dy_, x = x_, sizes, options).to(dy_.scalar_type());
  }
  // ddy = conv2d(x, g), dx = conv2d_input_grad(dy, g)
  template <class T>
  Grads<2, T> backward(const T& g, Needs<2> needs) const {
    return {needs[0] ? Conv2dInputGrad::forward_pass(x.as<T>(), g, options) : T(),
            needs[1] ? conv2d_input_grad(dy.as<T>(), g, x.data().sizes(), options) : T()};
  }
  static OpFlops flops(const at::Tensor& dy, const at::Tensor&, const at::Tensor& y) {
    const double products = product_flops(dy, y.sizes());
    return {.forward = {products}, .backward = {2 * products}};
  }
  static Flops needed(Flops both, Needs<2> needs) { return needed_flops(both, needs); }
};

}  // namespace

Variable conv2d(const Variable& x, const Variable& weight, const Variable& bias,
                const Conv2dOptions& options) {
  return apply(Conv2d{.options = options}, x, weight, bias);
}
Variable conv2d_input_grad(const Variable& dy, const Variable& weight, at::IntArrayRef sizes,
                           const Conv2dOptions& options) {
  return apply(Conv2dInputGrad{.sizes = image_sizes(sizes), .options = options}, dy, weight);
}
Variable conv2d_weight_grad(const Variable& dy, const Variable& x, at::IntArrayRef sizes,
                            const Conv2dOptions& options) {
  return apply(Conv2dWeightGrad{.sizes = image_sizes(sizes), .options = options}, dy, x);
}

}  // namespace lathe
