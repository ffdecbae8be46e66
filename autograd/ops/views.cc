// Implements the views that shape.cc does not have, and ops that move elements without arithmetic.
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/diagonal.h>
#include <ATen/ops/diagonal_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/unfold_backward.h>

#include <algorithm>

#include "autograd/ops/composed.h"
#include "autograd/ops/dims.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/shapes.h"
#include "core/error.h"

namespace lathe {
namespace {

[[maybe_unused]] const bool views_registered =
    register_composed({"squeeze", "chunk", "stack", "outer", "bmm"});

// Defines versions of ops for tensors, so that backward formulas can use the same names for tensors
// and Variables.
at::Tensor unfold(const at::Tensor& x, int64_t dim, int64_t size, int64_t step) {
  return x.unfold(dim, size, step);
}
at::Tensor padded(const at::Tensor& x, const Dims& pads, double value) {
  return at::constant_pad_nd(x, pads, value);
}
Variable padded(const Variable& x, const Dims& pads, double value);

struct Unfold {
  static constexpr OpInfo info{.name = "unfold", .each = {0, 1}};
  int64_t dim, size, step;
  Dims from{};
  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    from = dims_of(x.sizes());
    return x.unfold(dim, size, step);
  }
  // dx = the windows' gradients, accumulated at their positions
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {unfold_backward(dy, from, dim, size, step)};
  }
};

struct UnfoldBackward {
  static constexpr OpInfo info{.name = "unfold_backward", .each = {1, 0}};
  Dims sizes;
  int64_t dim, size, step;
  at::Tensor forward(const at::Tensor& dy) {
    dim = wrap_dim(dim, static_cast<int64_t>(sizes.size()));
    return at::unfold_backward(dy, sizes, dim, size, step);
  }
  // ddy = the windows of g
  template <class T>
  Grads<1, T> backward(const T& g, Needs<1>) const {
    return {unfold(g, dim, size, step)};
  }
};

struct Diagonal {
  static constexpr OpInfo info{.name = "diagonal", .each = {0, 0}};
  int64_t offset, dim1, dim2;
  Dims from{};
  at::Tensor forward(const at::Tensor& x) {
    dim1 = wrap_dim(dim1, x.dim());
    dim2 = wrap_dim(dim2, x.dim());
    LATHE_CHECK(dim1 != dim2, "the two dims must differ, but both are ", dim1);
    from = dims_of(x.sizes());
    return x.diagonal(offset, dim1, dim2);
  }
  // dx = zeros with dy on the diagonal
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {diagonal_backward(dy, from, offset, dim1, dim2)};
  }
};

struct DiagonalBackward {
  static constexpr OpInfo info{.name = "diagonal_backward", .each = {0, 0}};
  Dims sizes;
  int64_t offset, dim1, dim2;
  at::Tensor forward(const at::Tensor& x) {
    return at::diagonal_backward(x, sizes, offset, dim1, dim2);
  }
  // dx = the diagonal of dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {diagonal(dy, offset, dim1, dim2)};
  }
};

struct Flip {
  static constexpr OpInfo info{.name = "flip", .each = {0, 0}};
  Dims dims;
  at::Tensor forward(const at::Tensor& x) { return x.flip(dims); }
  // dx = dy, flipped back
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {flip(dy, dims)};
  }
};

struct Roll {
  static constexpr OpInfo info{.name = "roll", .each = {0, 0}};
  Dims shifts, dims;
  at::Tensor forward(const at::Tensor& x) { return x.roll(shifts, dims); }
  // dx = dy, shifted back
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    Dims back = shifts;
    for (auto& s : back) s = -s;
    return {roll(dy, back, dims)};
  }
};

struct Tril {
  static constexpr OpInfo info{.name = "tril", .each = {0, 0}};
  int64_t diagonal;
  at::Tensor forward(const at::Tensor& x) { return x.tril(diagonal); }
  // dx = tril(dy)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {tril(dy, diagonal)};
  }
};

struct Pad {
  static constexpr OpInfo info{.name = "pad", .each = {0, 0}};
  Dims pads;
  double value;
  at::Tensor forward(const at::Tensor& x) { return padded(x, pads, value); }
  // dx = dy without the padding, zeros where x was cropped
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    Dims back = pads;
    for (auto& p : back) p = -p;
    return {padded(dy, back, 0)};
  }
};

Variable padded(const Variable& x, const Dims& pads, double value) {
  return apply(Pad{.pads = pads, .value = value}, x);
}

/// Returns, for each position of a padded dim, the position in x from which its value comes. The
/// dim has `size` positions, and `before` and `behind` more positions are added. With
/// PadMode::circular, the elements that remain after a negative padding are repeated.
at::Tensor sources(const Variable& x, int64_t size, int64_t before, int64_t behind, PadMode mode) {
  const int64_t first = std::max<int64_t>(0, -before),
                left = size - first - std::max<int64_t>(0, -behind);
  std::vector<int64_t> from;
  for (int64_t i = -before; i < size + behind; ++i) {
    switch (mode) {
      case PadMode::reflect: from.push_back(i < 0 ? -i : i >= size ? 2 * (size - 1) - i : i); break;
      case PadMode::circular: from.push_back(first + (i - first + left) % left); break;
      default: from.push_back(std::clamp<int64_t>(i, 0, size - 1));
    }
  }
  at::Tensor t = at::empty({static_cast<int64_t>(from.size())}, at::kLong);
  std::copy(from.begin(), from.end(), t.mutable_data_ptr<int64_t>());
  return t.to(x.data().device());
}

}  // namespace

Variable squeeze(const Variable& x) {
  require_defined("squeeze", {&x});
  Dims kept;
  for (const int64_t size : x.sizes()) {
    if (size != 1) kept.push_back(size);
  }
  return reshape(x, kept);
}
Variable squeeze(const Variable& x, at::IntArrayRef dims) {
  require_defined("squeeze", {&x});
  Dims named;
  for (const int64_t d : dims) named.push_back(wrap_dim(d, x.dim()));
  check_distinct(named);

  Dims kept;
  for (int64_t d = 0; d < x.dim(); ++d) {
    const bool is_named = std::find(named.begin(), named.end(), d) != named.end();
    if (x.size(d) != 1 || !is_named) kept.push_back(x.size(d));
  }
  return reshape(x, kept);
}
std::vector<Variable> split(const Variable& x, int64_t size, int64_t dim) {
  require_defined("split", {&x});
  LATHE_CHECK(x.dim() > 0, "split: x must have at least one dim");
  dim = wrap_dim(dim, x.dim());
  const int64_t n = x.size(dim);
  LATHE_CHECK(size > 0 || (size == 0 && n == 0), "split(", describe(x.data()),
              "): the size of a part must be above 0, not ", size);
  Dims lengths;
  for (int64_t at = 0; at < n; at += size) lengths.push_back(std::min(size, n - at));
  if (n == 0) lengths.push_back(0);
  return split(x, at::IntArrayRef(lengths), dim);
}
std::vector<Variable> chunk(const Variable& x, int64_t chunks, int64_t dim) {
  require_defined("chunk", {&x});
  LATHE_CHECK(chunks > 0, "chunk: the number of parts must be above 0, not ", chunks);
  LATHE_CHECK(x.dim() > 0, "chunk: x must have at least one dim");
  dim = wrap_dim(dim, x.dim());
  const int64_t n = x.size(dim);
  if (n == 0) return split(x, at::IntArrayRef(Dims(static_cast<size_t>(chunks), 0)), dim);
  return split(x, (n + chunks - 1) / chunks, dim);
}
Variable unfold(const Variable& x, int64_t dim, int64_t size, int64_t step) {
  return apply(Unfold{.dim = dim, .size = size, .step = step}, x);
}
Variable unfold_backward(const Variable& dy, at::IntArrayRef sizes, int64_t dim, int64_t size,
                         int64_t step) {
  return apply(UnfoldBackward{.sizes = dims_of(sizes), .dim = dim, .size = size, .step = step}, dy);
}
Variable diagonal(const Variable& x, int64_t offset, int64_t dim1, int64_t dim2) {
  return apply(Diagonal{.offset = offset, .dim1 = dim1, .dim2 = dim2}, x);
}
Variable diagonal_backward(const Variable& x, at::IntArrayRef sizes, int64_t offset, int64_t dim1,
                           int64_t dim2) {
  return apply(
      DiagonalBackward{.sizes = dims_of(sizes), .offset = offset, .dim1 = dim1, .dim2 = dim2}, x);
}

Variable stack(const std::vector<Variable>& xs, int64_t dim) {
  LATHE_CHECK(!xs.empty(), "stack: nothing to join");
  std::vector<Variable> slices;
  for (const Variable& x : xs) {
    require_defined("stack", {&xs[0], &x});
    LATHE_CHECK(x.sizes() == xs[0].sizes(), "stack: ", describe(x.data()), " and ",
                describe(xs[0].data()), " differ in shape; all must have the same shape");
    slices.push_back(unsqueeze(x, dim));
  }
  return cat(slices, wrap_dim(dim, xs[0].dim() + 1));
}
Variable flip(const Variable& x, at::IntArrayRef dims) {
  return apply(Flip{.dims = dims_of(dims)}, x);
}
Variable roll(const Variable& x, at::IntArrayRef shifts, at::IntArrayRef dims) {
  return apply(Roll{.shifts = dims_of(shifts), .dims = dims_of(dims)}, x);
}
Variable tril(const Variable& x, int64_t diagonal) { return apply(Tril{.diagonal = diagonal}, x); }
Variable pad(const Variable& x, at::IntArrayRef pads, PadMode mode, double value) {
  require_defined("pad", {&x});
  LATHE_CHECK(pads.size() % 2 == 0 && static_cast<int64_t>(pads.size() / 2) <= x.dim(), "pad(",
              describe(x.data()), "): pads ", describe(pads),
              " must be two for each of the last dims");

  if (mode == PadMode::constant) return padded(x, dims_of(pads), value);
  LATHE_CHECK(value == 0, "pad: only PadMode::constant accepts a value");

  Variable y = x;
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    const int64_t dim = x.dim() - 1 - static_cast<int64_t>(i), size = x.size(dim);
    const int64_t before = pads[2 * i], behind = pads[2 * i + 1], most = std::max(before, behind);
    bool fits = size > 0;
    if (mode == PadMode::reflect) fits = most < size;
    if (mode == PadMode::circular)
      fits = most <= size + std::min<int64_t>(0, before) + std::min<int64_t>(0, behind);
    LATHE_CHECK(most <= 0 || fits, "pad(", describe(x.data()), "): dim ", dim, " of size ", size,
                " is too small to pad by ", most, " positions in this mode");
    LATHE_CHECK(size + before + behind >= 0, "pad(", describe(x.data()), "): dim ", dim,
                " of size ", size, " can't be cropped by ", before, " and ", behind);
    if (before != 0 || behind != 0)
      y = index_select(y, dim, sources(x, size, before, behind, mode));
  }
  return y;
}
Variable outer(const Variable& a, const Variable& b) {
  require_defined("outer", {&a, &b});
  LATHE_CHECK(a.dim() == 1 && b.dim() == 1, "outer(", describe(a.data()), ", ", describe(b.data()),
              "): both must have one dim");
  return mul(unsqueeze(a, 1), b);
}
Variable bmm(const Variable& a, const Variable& b) {
  require_defined("bmm", {&a, &b});
  LATHE_CHECK(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0), "bmm(", describe(a.data()),
              ", ", describe(b.data()), "): needs [b, n, k] and [b, k, m]");
  return matmul(a, b);
}

}  // namespace lathe
