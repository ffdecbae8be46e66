// Implements pooling of images with ATen's kernels.
#include <ATen/ops/_adaptive_avg_pool2d.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices.h>

#include "autograd/ops/formula.h"
#include "autograd/ops/image.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {
namespace {

void check_image(const at::Tensor& x) { LATHE_CHECK(x.dim() == 4, "x must be [B, C, H, W]"); }

struct MaxPool2d {
  static constexpr OpInfo info{.name = "max_pool2d", .each = {0, 0}};
  Pair kernel, stride, padding, dilation;
  bool ceil_mode;
  ImageSizes sizes{};
  Saved places{};  // index of each window's maximum in the H W positions of a channel

  at::Tensor forward(const at::Tensor& x) {
    check_image(x);
    sizes = image_sizes(x.sizes());
    check_kernel();
    auto [y, index] = at::max_pool2d_with_indices(x.contiguous(), both(kernel), both(stride),
                                                  both(padding), both(dilation), ceil_mode);
    check_windows(y.size(2), x.size(2), kernel.h, stride.h, padding.h, dilation.h);
    check_windows(y.size(3), x.size(3), kernel.w, stride.w, padding.w, dilation.w);
    places = index.flatten(2);
    return y;
  }
  void check_kernel() const {
    LATHE_CHECK(
        at_least(kernel, 1) && at_least(stride, 1) && at_least(dilation, 1) && at_least(padding, 0),
        "kernel, stride and dilation must be at least 1, and padding at least 0");
  }
  /// Throws if one of the `out` windows along a dim lies completely in the padding, because such a
  /// window has no maximum.
  static void check_windows(int64_t out, int64_t size, int64_t kernel, int64_t stride,
                            int64_t padding, int64_t dilation) {
    for (int64_t i = 0; i < out; ++i) {
      bool sees = false;
      for (int64_t k = 0; k < kernel && !sees; ++k) {
        const int64_t position = i * stride - padding + k * dilation;
        sees = position >= 0 && position < size;
      }
      LATHE_CHECK(sees, "window ", i,
                  " lies completely in the padding; make the dilation or the padding smaller");
    }
  }
  // dx[place] += dy; overlapping windows are summed in float32 or wider
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    const at::Tensor& index = places.data();
    const T rows = reshape(dy.dtype() == at::kDouble ? dy : cast(dy, at::kFloat), index.sizes());
    return {reshape(gather_backward(rows, 2, index, sizes[2] * sizes[3]), sizes)};
  }
  OpFlops flops(const at::Tensor&, const at::Tensor& y) const {
    return flops_each(y, static_cast<double>(kernel.h * kernel.w - 1), 1);
  }
};

/// The windows of an average pool, and which of their positions count.
struct AvgWindows {
  Pair kernel, stride, padding;
  bool ceil_mode, count_include_pad;

  at::Tensor means(const at::Tensor& x) const {
    return at::avg_pool2d(x.contiguous(), both(kernel), both(stride), both(padding), ceil_mode,
                          count_include_pad);
  }
  at::Tensor adjoint(const at::Tensor& dy, at::IntArrayRef sizes) const {
    const at::Tensor shape = at::empty(sizes, dy.options());  // ATen reads only the shape of x
    return at::avg_pool2d_backward(dy.contiguous(), shape, both(kernel), both(stride),
                                   both(padding), ceil_mode, count_include_pad, std::nullopt);
  }
  double size() const { return static_cast<double>(kernel.h * kernel.w); }
};
at::Tensor adaptive_avg_pool2d_backward(const at::Tensor& dy, at::IntArrayRef sizes) {
  if (dy.is_cuda()) {
    return adjoint_by_products(dy, image_sizes(sizes), [](const at::Tensor& x, Pair out) {
      return at::_adaptive_avg_pool2d(x, both(out));
    });
  }
  return at::_adaptive_avg_pool2d_backward(dy.contiguous(), at::empty(sizes, dy.options()));
}

struct AvgPool2d {
  static constexpr OpInfo info{.name = "avg_pool2d", .amp = Amp::fp32};
  AvgWindows windows;
  ImageSizes sizes{};

  at::Tensor forward(const at::Tensor& x) {
    check_image(x);
    sizes = image_sizes(x.sizes());
    return windows.means(x);
  }
  // dx += dy / (number of positions that count) over each window
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {windows.adjoint(dy, sizes)};
    else
      return {avg_pool2d_backward(dy, sizes, windows.kernel, windows.stride, windows.padding,
                                  windows.ceil_mode, windows.count_include_pad)};
  }
  OpFlops flops(const at::Tensor&, const at::Tensor& y) const {
    return flops_each(y, windows.size(), windows.size());
  }
};

struct AvgPool2dBackward {
  static constexpr OpInfo info{.name = "avg_pool2d_backward", .amp = Amp::fp32};
  ImageSizes sizes;
  AvgWindows windows;

  at::Tensor forward(const at::Tensor& dy) { return windows.adjoint(dy, sizes); }
  // ddy = avg_pool2d(g)
  template <class T>
  Grads<1, T> backward(const T& g, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {windows.means(g)};
    else
      return {avg_pool2d(g, windows.kernel, windows.stride, windows.padding, windows.ceil_mode,
                         windows.count_include_pad)};
  }
  OpFlops flops(const at::Tensor& dy, const at::Tensor&) const {
    return flops_each(dy, windows.size(), windows.size());
  }
};

struct AdaptiveAvgPool2d {
  static constexpr OpInfo info{.name = "adaptive_avg_pool2d", .amp = Amp::fp32};
  Pair out;
  ImageSizes sizes{};

  at::Tensor forward(const at::Tensor& x) {
    check_image(x);
    LATHE_CHECK(out.h >= 1 && out.w >= 1 && x.size(2) >= 1 && x.size(3) >= 1,
                "x and the result must not be empty, and the result would be ", out.h, " x ",
                out.w);
    sizes = image_sizes(x.sizes());
    return at::_adaptive_avg_pool2d(x.contiguous(), both(out));
  }
  // dx += dy / (the window's size) over each window
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {adaptive_avg_pool2d_backward(dy, sizes)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 1, 1); }
};

struct AdaptiveAvgPool2dBackward {
  static constexpr OpInfo info{.name = "adaptive_avg_pool2d_backward", .amp = Amp::fp32};
  ImageSizes sizes;
  Pair out{1};

  at::Tensor forward(const at::Tensor& dy) {
    check_image(dy);
    out = {dy.size(2), dy.size(3)};
    return adaptive_avg_pool2d_backward(dy, sizes);
  }
  // ddy = adaptive_avg_pool2d(g)
  template <class T>
  Grads<1, T> backward(const T& g, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {at::_adaptive_avg_pool2d(g.contiguous(), both(out))};
    else
      return {adaptive_avg_pool2d(g, out)};
  }
};

}  // namespace

Variable max_pool2d(const Variable& x, Pair kernel, std::optional<Pair> stride, Pair padding,
                    Pair dilation, bool ceil_mode) {
  return apply(MaxPool2d{.kernel = kernel,
                         .stride = stride.value_or(kernel),
                         .padding = padding,
                         .dilation = dilation,
                         .ceil_mode = ceil_mode},
               x);
}
Variable avg_pool2d(const Variable& x, Pair kernel, std::optional<Pair> stride, Pair padding,
                    bool ceil_mode, bool count_include_pad) {
  return apply(AvgPool2d{{.kernel = kernel,
                          .stride = stride.value_or(kernel),
                          .padding = padding,
                          .ceil_mode = ceil_mode,
                          .count_include_pad = count_include_pad}},
               x);
}
Variable avg_pool2d_backward(const Variable& dy, at::IntArrayRef sizes, Pair kernel, Pair stride,
                             Pair padding, bool ceil_mode, bool count_include_pad) {
  return apply(AvgPool2dBackward{image_sizes(sizes),
                                 {.kernel = kernel,
                                  .stride = stride,
                                  .padding = padding,
                                  .ceil_mode = ceil_mode,
                                  .count_include_pad = count_include_pad}},
               dy);
}
Variable adaptive_avg_pool2d(const Variable& x, Pair out) {
  return apply(AdaptiveAvgPool2d{.out = out}, x);
}
Variable adaptive_avg_pool2d_backward(const Variable& dy, at::IntArrayRef sizes) {
  return apply(AdaptiveAvgPool2dBackward{.sizes = image_sizes(sizes)}, dy);
}

}  // namespace lathe
