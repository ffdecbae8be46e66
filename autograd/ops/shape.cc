// Implements views and other ops on shapes. Only topk and the adjoints that add elements count
// FLOPs.
#include <ATen/ops/zeros.h>

#include "autograd/ops/dims.h"
#include "autograd/ops/formula.h"

namespace lathe {
namespace {

struct Reshape {
  static constexpr OpInfo info{.name = "reshape", .each = {0, 0}};
  Dims to;
  Dims from{};
  at::Tensor forward(const at::Tensor& x) {
    from = dims_of(x.sizes());
    return x.reshape(to);
  }
  // dx = dy in x's shape
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {reshape(dy, from)};
  }
};

struct Expand {
  static constexpr OpInfo info{.name = "expand", .each = {0, 1}};
  Dims to;
  at::Tensor forward(const at::Tensor& x) { return x.expand(to); }
  // dx = dy; the engine sums it to x's shape
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy};
  }
};

struct Transpose {
  static constexpr OpInfo info{.name = "transpose", .each = {0, 0}};
  int64_t a, b;
  at::Tensor forward(const at::Tensor& x) {
    return x.transpose(a = wrap_dim(a, x.dim()), b = wrap_dim(b, x.dim()));
  }
  // dx = dy, transposed back
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {transpose(dy, a, b)};
  }
};

struct Permute {
  static constexpr OpInfo info{.name = "permute", .each = {0, 0}};
  Dims dims;
  at::Tensor forward(const at::Tensor& x) {
    for (auto& d : dims) d = wrap_dim(d, x.dim());
    return x.permute(dims);
  }
  // dx = dy, permuted back
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    Dims inverse(dims.size());
    for (size_t i = 0; i < dims.size(); ++i)
      inverse[static_cast<size_t>(dims[i])] = static_cast<int64_t>(i);
    return {permute(dy, inverse)};
  }
};

struct Sliced {
  static constexpr OpInfo info{.name = "slice", .each = {0, 0}};
  int64_t dim, start, end, step;
  int64_t size = 0;
  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    size = x.size(dim);
    LATHE_CHECK(step > 0, "step ", step, " must be positive");
    return x.slice(dim, start, end, step);
  }
  // dx = dy at [start, end), zeros elsewhere
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {slice_backward(dy, dim, start, end, step, size)};
  }
};

struct SliceBackward {
  static constexpr OpInfo info{.name = "slice_backward", .each = {0, 0}};
  int64_t dim, start, end, step, size;
  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    return slice_backward(x, dim, start, end, step, size);
  }
  // dx = the slice of dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {slice(dy, dim, start, end, step)};
  }
};

struct Unsqueeze {
  static constexpr OpInfo info{.name = "unsqueeze", .each = {0, 0}};
  int64_t dim;
  Reshape shape{};
  at::Tensor forward(const at::Tensor& x) {
    shape.to = dims_of(x.sizes());
    shape.to.insert(shape.to.begin() + wrap_dim(dim, x.dim() + 1), 1);
    return shape.forward(x);
  }
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1> needs) const {
    return shape.backward(dy, needs);
  }
};

struct Cat {
  static constexpr OpInfo info{.name = "cat", .each = {0, 0}};
  int64_t dim;
  std::vector<Dims> from{};
  at::Tensor forward(at::TensorList x) {
    at::Tensor y = at::cat(x, dim);
    dim = wrap_dim(dim, y.dim());
    for (const at::Tensor& t : x) from.push_back(dims_of(t.sizes()));
    return y;
  }
  // dx_i = the part of dy that came from x_i. An empty vector can be joined with anything, as in
  // ATen; its part has length 0.
  template <class T>
  GradList<T> backward(const T& dy, const NeedsList& needs) const {
    GradList<T> out(from.size());
    int64_t at = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      const bool empty = from[i].size() == 1 && from[i][0] == 0;
      const int64_t length = empty ? 0 : from[i][static_cast<size_t>(dim)];
      if (needs[i]) out[i] = slice(dy, dim, at, at + length, 1);
      if (needs[i] && empty) out[i] = reshape(out[i], from[i]);
      at += length;
    }
    return out;
  }
};

/// Joins the parts of dy again, with zeros for parts without a gradient. `sizes` are the shapes of
/// the parts.
template <class T>
T joined(const GradList<T>& dy, const std::vector<Dims>& sizes, int64_t dim,
         const at::TensorOptions& options) {
  std::vector<T> parts;
  for (size_t i = 0; i < dy.size(); ++i)
    parts.push_back(dy[i].defined() ? dy[i] : constant<T>(at::zeros(sizes[i], options)));
  return cat(parts, dim);
}

struct Split {
  static constexpr OpInfo info{.name = "split", .each = {0, 0}};
  Dims lengths;
  int64_t dim;
  std::vector<Dims> parts{};
  at::TensorOptions options{};
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    options = x.options();
    std::vector<at::Tensor> y = x.split_with_sizes(lengths, dim);
    for (const at::Tensor& t : y) parts.push_back(dims_of(t.sizes()));
    return y;
  }
  // dx = the parts' gradients, joined
  template <class T>
  Grads<1, T> backward(const GradList<T>& dy, Needs<1>) const {
    return {joined(dy, parts, dim, options)};
  }
};

struct Unbind {
  static constexpr OpInfo info{.name = "unbind", .each = {0, 0}};
  int64_t dim;
  Dims part{};
  at::TensorOptions options{};
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    options = x.options();
    part = dims_of(x.sizes());
    part[static_cast<size_t>(dim)] = 1;
    return x.unbind(dim);
  }
  // dx = the slices' gradients, stacked
  template <class T>
  Grads<1, T> backward(const GradList<T>& dy, Needs<1>) const {
    GradList<T> slices;
    for (const T& g : dy) slices.push_back(g.defined() ? unsqueeze(g, dim) : T());
    return {joined(slices, std::vector<Dims>(slices.size(), part), dim, options)};
  }
};

struct Gather {
  static constexpr OpInfo info{.name = "gather", .each = {0, 1}};
  int64_t dim;
  Saved index;
  int64_t size = 0;
  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    size = x.dim() > 0 ? x.size(dim) : 1;
    const at::Tensor& i = index.data();
    LATHE_CHECK(i.defined() && i.scalar_type() == at::kLong, "index must be int64, not ",
                describe(i));
    for (int64_t d = 0; d < x.dim(); ++d) {
      LATHE_CHECK(i.dim() == x.dim() && (d == dim || i.size(d) == x.size(d)), "index ", describe(i),
                  " must have as many dims as x, and no size above x's except along dim ", dim);
    }
    return x.gather(dim, i);
  }
  // dx[index] += dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {gather_backward(dy, dim, index.data(), size)};
  }
};

struct GatherBackward {
  static constexpr OpInfo info{.name = "gather_backward", .each = {1, 0}};
  int64_t dim;
  Saved index;
  int64_t size;
  at::Tensor forward(const at::Tensor& x) {
    return gather_backward(x, dim = wrap_dim(dim, x.dim()), index.data(), size);
  }
  // dx = dy[index]
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {gather(dy, dim, index.data())};
  }
};

struct Topk {
  static constexpr OpInfo info{.name = "topk"};
  int64_t k, dim;
  bool largest;
  Saved index{};
  int64_t size = 0;
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    size = x.dim() > 0 ? x.size(dim) : 1;
    auto [values, indices] = x.topk(k, dim, largest, /*sorted=*/true);
    index = indices;
    return {values, indices};
  }
  // dx[index] = dy
  template <class T>
  Grads<1, T> backward(const GradList<T>& dy, Needs<1>) const {
    return {gather_backward(dy[0], dim, index.data(), size)};
  }
};

struct Triu {
  static constexpr OpInfo info{.name = "triu", .each = {0, 0}};
  int64_t diagonal;
  at::Tensor forward(const at::Tensor& x) { return x.triu(diagonal); }
  // dx = triu(dy)
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {triu(dy, diagonal)};
  }
};

struct Contiguous {
  static constexpr OpInfo info{.name = "contiguous", .each = {0, 0}};
  at::Tensor forward(const at::Tensor& x) { return x.contiguous(); }
  // dx = dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy};
  }
};

}  // namespace

Variable reshape(const Variable& x, at::IntArrayRef sizes) {
  return apply(Reshape{.to = dims_of(sizes)}, x);
}
Variable flatten(const Variable& x, int64_t first, int64_t last) {
  require_defined("flatten", {&x});
  first = wrap_dim(first, x.dim());
  last = wrap_dim(last, x.dim());
  if (x.dim() == 0) return reshape(x, {1});
  LATHE_CHECK(first <= last, "flatten(", describe(x.data()), "): dim ", first, " comes after dim ",
              last);
  Dims sizes = dims_of(x.sizes().slice(0, static_cast<size_t>(first)));
  sizes.push_back(c10::multiply_integers(
      x.sizes().slice(static_cast<size_t>(first), static_cast<size_t>(last - first + 1))));
  for (int64_t d = last + 1; d < x.dim(); ++d) sizes.push_back(x.size(d));
  return reshape(x, sizes);
}
Variable expand(const Variable& x, at::IntArrayRef sizes) {
  return apply(Expand{.to = dims_of(sizes)}, x);
}
Variable transpose(const Variable& x, int64_t a, int64_t b) {
  return apply(Transpose{.a = a, .b = b}, x);
}
Variable permute(const Variable& x, at::IntArrayRef dims) {
  return apply(Permute{.dims = dims_of(dims)}, x);
}
Variable slice(const Variable& x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  return apply(Sliced{.dim = dim, .start = start, .end = end, .step = step}, x);
}
Variable slice_backward(const Variable& x, int64_t dim, int64_t start, int64_t end, int64_t step,
                        int64_t size) {
  return apply(SliceBackward{.dim = dim, .start = start, .end = end, .step = step, .size = size},
               x);
}
Variable cat(const std::vector<Variable>& xs, int64_t dim) {
  LATHE_CHECK(!xs.empty(), "cat: nothing to join");
  return apply(Cat{.dim = dim}, xs);
}
Variable unsqueeze(const Variable& x, int64_t dim) { return apply(Unsqueeze{.dim = dim}, x); }
std::vector<Variable> split(const Variable& x, at::IntArrayRef lengths, int64_t dim) {
  return apply(Split{.lengths = dims_of(lengths), .dim = dim}, x);
}
std::vector<Variable> unbind(const Variable& x, int64_t dim) {
  return apply(Unbind{.dim = dim}, x);
}
Variable gather(const Variable& x, int64_t dim, const at::Tensor& index) {
  require_defined("gather", {&x});
  Variable part = x;
  for (int64_t d = 0; d < x.dim() && index.dim() == x.dim(); ++d) {
    if (d != wrap_dim(dim, x.dim()) && index.size(d) < x.size(d))
      part = slice(part, d, 0, index.size(d));
  }
  return apply(Gather{.dim = dim, .index = index}, part);
}
Variable gather_backward(const Variable& x, int64_t dim, const at::Tensor& index, int64_t size) {
  return apply(GatherBackward{.dim = dim, .index = index, .size = size}, x);
}
std::pair<Variable, at::Tensor> topk(const Variable& x, int64_t k, int64_t dim, bool largest) {
  const auto out = apply(Topk{.k = k, .dim = dim, .largest = largest}, x);
  return {out[0], out[1].data()};
}
Variable triu(const Variable& x, int64_t diagonal) { return apply(Triu{.diagonal = diagonal}, x); }
Variable contiguous(const Variable& x) { return apply(Contiguous{}, x); }

}  // namespace lathe
