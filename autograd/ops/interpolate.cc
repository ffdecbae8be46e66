// Implements the resizing of images with ATen's kernels. Both modes are linear in x, so the
// gradient is the adjoint map, and the gradient of the adjoint map is the resizing itself.
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_bilinear2d_backward.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest2d_backward.h>

#include <cmath>
#include <limits>

#include "autograd/ops/formula.h"
#include "autograd/ops/image.h"
#include "autograd/ops/images.h"

namespace lathe {
namespace {

struct Resampling {
  Pair size;
  Interpolation mode;
  bool align_corners;
  std::optional<double> scale_h, scale_w;

  at::Tensor operator()(const at::Tensor& x) const { return to(x, size, scale_h, scale_w); }
  at::Tensor to(const at::Tensor& x, Pair out, std::optional<double> h,
                std::optional<double> w) const {
    return mode == Interpolation::nearest
               ? at::upsample_nearest2d(x, both(out), h, w)
               : at::upsample_bilinear2d(x, both(out), align_corners, h, w);
  }
  Variable operator()(const Variable& x) const;
  /// Returns the gradient of x, whose shape is `from`.
  at::Tensor adjoint(const at::Tensor& dy, const ImageSizes& from) const {
    if (dy.is_cuda() && mode == Interpolation::bilinear) {
      return adjoint_by_products(dy, from, [this](const at::Tensor& x, Pair out) {
        const bool by_height = x.size(3) == 1;  // the other dim has size 1 and is not scaled
        return to(x, out, by_height ? scale_h : std::nullopt, by_height ? std::nullopt : scale_w);
      });
    }
    return mode == Interpolation::nearest
               ? at::upsample_nearest2d_backward(dy, both(size), from, scale_h, scale_w)
               : at::upsample_bilinear2d_backward(dy, both(size), from, align_corners, scale_h,
                                                  scale_w);
  }
  Variable adjoint(const Variable& dy, const ImageSizes& from) const;
};

struct Interpolate {
  static constexpr OpInfo info{.name = "interpolate", .each = {6, 6}};
  Resampling by;
  ImageSizes from{};
  at::Tensor forward(const at::Tensor& x) {
    from = image_sizes(x.sizes());
    LATHE_CHECK(by.size.h > 0 && by.size.w > 0 && x.size(2) > 0 && x.size(3) > 0,
                "x and the result must not be empty, and the result would be ", by.size.h, " x ",
                by.size.w);
    return by(x);
  }
  // dx: an element of dy flows to the pixels of x from which the same element of y was computed
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {by.adjoint(dy, from)};
  }
};

struct InterpolateBackward {
  static constexpr OpInfo info{.name = "interpolate_backward", .each = {6, 6}};
  Resampling by;
  ImageSizes from;
  at::Tensor forward(const at::Tensor& dy) { return by.adjoint(dy, from); }
  // ddy = g, interpolated
  template <class T>
  Grads<1, T> backward(const T& g, Needs<1>) const {
    return {by(g)};
  }
};

Variable Resampling::operator()(const Variable& x) const {
  return apply(Interpolate{.by = *this}, x);
}
Variable Resampling::adjoint(const Variable& dy, const ImageSizes& from) const {
  return apply(InterpolateBackward{.by = *this, .from = from}, dy);
}

/// Calls f on x as an image, and returns its result with the dims of x.
template <class F>
Variable of_image(const Variable& x, F&& f) {
  LATHE_CHECK(x.dim() == 3 || x.dim() == 4, "interpolate(", describe(x.data()),
              "): x must be [B, C, L] or [B, C, H, W]");
  if (x.dim() == 4) return f(x);
  const Variable y = f(unsqueeze(x, 2));
  return reshape(y, {y.size(0), y.size(1), y.size(3)});
}

}  // namespace

Variable interpolate(const Variable& x, Pair size, Interpolation mode, bool align_corners) {
  require_defined("interpolate", {&x});
  LATHE_CHECK(!align_corners || mode != Interpolation::nearest,
              "interpolate: align_corners needs Interpolation::bilinear");
  return of_image(x, [&](const Variable& v) {
    const Pair to = x.dim() == 3 ? Pair(1, size.w) : size;
    return Resampling{
        .size = to, .mode = mode, .align_corners = align_corners, .scale_h = {}, .scale_w = {}}(v);
  });
}
Variable interpolate_by(const Variable& x, double scale_h, double scale_w, Interpolation mode,
                        bool align_corners) {
  require_defined("interpolate_by", {&x});
  LATHE_CHECK(!align_corners || mode != Interpolation::nearest,
              "interpolate_by: align_corners needs Interpolation::bilinear");
  LATHE_CHECK(scale_h > 0 && scale_w > 0 && std::isfinite(scale_h) && std::isfinite(scale_w),
              "interpolate_by: scales ", scale_h, " and ", scale_w, " must be finite and above 0");
  return of_image(x, [&](const Variable& v) {
    const double h = x.dim() == 3 ? 1.0 : scale_h;
    const auto times = [](int64_t n, double scale) {
      const double scaled = std::floor(static_cast<double>(n) * scale);
      LATHE_CHECK(scaled <= std::numeric_limits<int32_t>::max(), "interpolate_by: ", n,
                  " positions times ", scale, " are more than an image can have");
      return static_cast<int64_t>(scaled);
    };
    return Resampling{.size = {times(v.size(2), h), times(v.size(3), scale_w)},
                      .mode = mode,
                      .align_corners = align_corners,
                      .scale_h = h,
                      .scale_w = scale_w}(v);
  });
}

}  // namespace lathe
