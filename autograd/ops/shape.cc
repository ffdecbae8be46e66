// Views and shapes. No arithmetic, so no FLOPs, but for what adjoints add.
#include <ATen/ops/cat.h>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/dtype.h"

namespace lathe {
namespace {

using Dims = c10::SmallVector<int64_t, 5>;
Dims dims_of(at::IntArrayRef sizes) { return Dims(sizes.begin(), sizes.end()); }

struct Reshape {
  static constexpr OpInfo info{.name = "reshape"};
  Dims to;
  Dims from{};
  at::Tensor forward(const at::Tensor& x) {
    from = dims_of(x.sizes());
    return x.reshape(to);
  }
  // dx = dy in x's shape
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy.reshape(from)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&) { return {}; }
};

struct Expand {
  static constexpr OpInfo info{.name = "expand"};
  Dims to;
  at::Tensor forward(const at::Tensor& x) { return x.expand(to); }
  // dx = dy; the engine sums it to x's shape
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 0, 1); }
};

struct Transpose {
  static constexpr OpInfo info{.name = "transpose"};
  int64_t a, b;
  at::Tensor forward(const at::Tensor& x) { return x.transpose(a = wrap_dim(a, x.dim()), b = wrap_dim(b, x.dim())); }
  // dx = dy, transposed back
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy.transpose(a, b)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&) { return {}; }
};

struct Permute {
  static constexpr OpInfo info{.name = "permute"};
  Dims dims;
  at::Tensor forward(const at::Tensor& x) {
    for (auto& d : dims) d = wrap_dim(d, x.dim());
    return x.permute(dims);
  }
  // dx = dy, permuted back
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    Dims inverse(dims.size());
    for (size_t i = 0; i < dims.size(); ++i) inverse[static_cast<size_t>(dims[i])] = static_cast<int64_t>(i);
    return {dy.permute(inverse)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&) { return {}; }
};

at::Tensor zeros_around(const at::Tensor& dy, int64_t dim, int64_t start, int64_t end, int64_t step, int64_t size) {
  Dims sizes = dims_of(dy.sizes());
  sizes[static_cast<size_t>(dim)] = size;
  at::Tensor x = dy.new_zeros(sizes);
  x.slice(dim, start, end, step).copy_(dy);
  return x;
}
Variable zeros_around(const Variable& dy, int64_t dim, int64_t start, int64_t end, int64_t step, int64_t size) {
  return unslice(dy, dim, start, end, step, size);
}

struct Slice {
  static constexpr OpInfo info{.name = "slice"};
  int64_t dim, start, end, step;
  int64_t size = 0;
  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    size = x.size(dim);
    LATHE_CHECK(step > 0, "step ", step, " must be positive");
    return x.slice(dim, start, end, step);
  }
  // dx = dy in its place, zeros elsewhere
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {zeros_around(dy, dim, start, end, step, size)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&) { return {}; }
};

struct Unslice {
  static constexpr OpInfo info{.name = "unslice"};
  int64_t dim, start, end, step, size;
  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    return zeros_around(x, dim, start, end, step, size);
  }
  // dx = the slice of dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy.slice(dim, start, end, step)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&) { return {}; }
};

/// Joins two; a longer list is joined pairwise by balanced halves, so that each element is copied log2(n) times.
struct Cat {
  static constexpr OpInfo info{.name = "cat"};
  int64_t dim;
  int64_t first = 0, total = 0;
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    dim = wrap_dim(dim, a.dim());
    at::Tensor y = at::cat({a, b}, dim);
    first = a.size(dim);
    total = y.size(dim);
    return y;
  }
  // da, db = the parts of dy
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2>) const {
    return {dy.slice(dim, 0, first), dy.slice(dim, first, total)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&, const at::Tensor&) { return {}; }
};

struct Triu {
  static constexpr OpInfo info{.name = "triu"};
  int64_t diagonal;
  at::Tensor forward(const at::Tensor& x) { return x.triu(diagonal); }
  // dx = triu(dy)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy.triu(diagonal)};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&) { return {}; }
};

struct Contiguous {
  static constexpr OpInfo info{.name = "contiguous"};
  at::Tensor forward(const at::Tensor& x) { return x.contiguous(); }
  // dx = dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&) { return {}; }
};

Variable cat_range(const std::vector<Variable>& xs, size_t begin, size_t end, int64_t dim) {
  if (end - begin == 1) return xs[begin];
  const size_t middle = begin + (end - begin) / 2;
  return apply(Cat{.dim = dim}, cat_range(xs, begin, middle, dim), cat_range(xs, middle, end, dim));
}

}  // namespace

Variable reshape(const Variable& x, at::IntArrayRef sizes) { return apply(Reshape{.to = dims_of(sizes)}, x); }
Variable expand(const Variable& x, at::IntArrayRef sizes) { return apply(Expand{.to = dims_of(sizes)}, x); }
Variable transpose(const Variable& x, int64_t a, int64_t b) { return apply(Transpose{.a = a, .b = b}, x); }
Variable permute(const Variable& x, at::IntArrayRef dims) { return apply(Permute{.dims = dims_of(dims)}, x); }
Variable slice(const Variable& x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  return apply(Slice{.dim = dim, .start = start, .end = end, .step = step}, x);
}
Variable unslice(const Variable& x, int64_t dim, int64_t start, int64_t end, int64_t step, int64_t size) {
  return apply(Unslice{.dim = dim, .start = start, .end = end, .step = step, .size = size}, x);
}
Variable cat(const std::vector<Variable>& xs, int64_t dim) {
  LATHE_CHECK(!xs.empty(), "cat: nothing to join");
  return cat_range(xs, 0, xs.size(), dim);
}
Variable triu(const Variable& x, int64_t diagonal) { return apply(Triu{.diagonal = diagonal}, x); }
Variable contiguous(const Variable& x) { return apply(Contiguous{}, x); }

}  // namespace lathe
