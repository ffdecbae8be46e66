// Implements im2col and col2im, which convert between the windows of an image and columns.
#include <ATen/ops/col2im.h>
#include <ATen/ops/im2col.h>

#include "autograd/ops/formula.h"
#include "autograd/ops/image.h"
#include "autograd/ops/images.h"

namespace lathe {
namespace {

struct Windows {
  Pair kernel, dilation, padding, stride;
};
// columns_of() and image_of() exist for tensors and for Variables, so that one backward formula
// serves both.
at::Tensor columns_of(const at::Tensor& x, const Windows& w) {
  return at::im2col(x, both(w.kernel), both(w.dilation), both(w.padding), both(w.stride));
}
Variable columns_of(const Variable& x, const Windows& w) {
  return im2col(x, w.kernel, w.dilation, w.padding, w.stride);
}
at::Tensor image_of(const at::Tensor& x, Pair size, const Windows& w) {
  return at::col2im(x, both(size), both(w.kernel), both(w.dilation), both(w.padding),
                    both(w.stride));
}
Variable image_of(const Variable& x, Pair size, const Windows& w) {
  return col2im(x, size, w.kernel, w.dilation, w.padding, w.stride);
}

struct Im2col {
  static constexpr OpInfo info{.name = "im2col", .each = {0, 1}};
  Windows windows;
  Pair size = 0;
  at::Tensor forward(const at::Tensor& x) {
    LATHE_CHECK(x.dim() == 4, "x must be [B, C, H, W]");
    size = {x.size(2), x.size(3)};
    return columns_of(x, windows);
  }
  // dx = the columns' gradients, accumulated at their positions
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {image_of(dy, size, windows)};
  }
};

struct Col2im {
  static constexpr OpInfo info{.name = "col2im", .each = {1, 0}};
  Pair size;
  Windows windows;
  at::Tensor forward(const at::Tensor& x) {
    LATHE_CHECK(x.dim() == 3, "x must be [B, C kh kw, windows]");
    return image_of(x, size, windows);
  }
  // dx = the columns of dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {columns_of(dy, windows)};
  }
};

}  // namespace

Variable im2col(const Variable& x, Pair kernel, Pair dilation, Pair padding, Pair stride) {
  return apply(Im2col{.windows = {.kernel = kernel,
                                  .dilation = dilation,
                                  .padding = padding,
                                  .stride = stride}},
               x);
}
Variable col2im(const Variable& x, Pair size, Pair kernel, Pair dilation, Pair padding,
                Pair stride) {
  return apply(Col2im{.size = size,
                      .windows = {.kernel = kernel,
                                  .dilation = dilation,
                                  .padding = padding,
                                  .stride = stride}},
               x);
}

}  // namespace lathe
