// Implements ops that read or add slices and elements at the positions in an index tensor.
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include "autograd/ops/dims.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/shapes.h"
#include "core/error.h"

namespace lathe {
namespace {

void check_index(const at::Tensor& index) {
  LATHE_CHECK(index.scalar_type() == at::kLong && index.dim() <= 1,
              "the index must be int64 with at most one dim, not ", describe(index));
}

/// Adds the slices of `source` to x at the positions in `index`, and returns x. Accepts a tensor
/// without dims, which ATen's index_add_ rejects on a GPU.
at::Tensor add_at(const at::Tensor& x, int64_t dim, const at::Tensor& index,
                  const at::Tensor& source) {
  return x.dim() == 0 && x.is_cuda() ? x.add_(source.sum()) : x.index_add_(dim, index, source);
}

struct IndexSelect {
  static constexpr OpInfo info{.name = "index_select", .each = {0, 1}};
  int64_t dim;
  Saved index;
  Dims from{};
  at::Tensor forward(const at::Tensor& x) {
    check_index(index.data());
    from = dims_of(x.sizes());
    return x.index_select(dim = wrap_dim(dim, x.dim()), index.data());
  }
  // dx[index] += dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    if constexpr (std::same_as<T, at::Tensor>)
      return {add_at(dy.new_zeros(from), dim, index.data(), dy)};
    else
      return {index_add(T(dy.data().new_zeros(from)), dim, index.data(), dy)};
  }
};

struct IndexAdd {
  static constexpr OpInfo info{.name = "index_add", .each = {1, 0}};
  int64_t dim;
  Saved index;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& source) {
    check_index(index.data());
    return add_at(x.clone(), dim = wrap_dim(dim, x.dim()), index.data(), source);
  }
  // dx = dy, dsource = the slices of dy at the positions
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {dy, needs[1] ? index_select(dy, dim, index.data()) : T()};
  }
};

/// Adds the elements of src to x at the positions in `index`, which has src's shape.
struct ScatterAdd {
  static constexpr OpInfo info{.name = "scatter_add", .each = {1, 0}};
  int64_t dim;
  Saved index;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& src) {
    return x.scatter_add(dim = wrap_dim(dim, x.dim()), index.data(), src);
  }
  // dx = dy, dsrc = the elements of dy at the positions
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    return {dy, needs[1] ? gather(dy, dim, index.data()) : T()};
  }
};

}  // namespace

Variable index_select(const Variable& x, int64_t dim, const at::Tensor& index) {
  return apply(IndexSelect{.dim = dim, .index = index}, x);
}
Variable index_add(const Variable& x, int64_t dim, const at::Tensor& index,
                   const Variable& source) {
  return apply(IndexAdd{.dim = dim, .index = index}, x, source);
}
Variable scatter_add(const Variable& x, int64_t dim, const at::Tensor& index, const Variable& src) {
  require_defined("scatter_add", {&x, &src});
  const int64_t along = wrap_dim(dim, x.dim());
  LATHE_CHECK(index.scalar_type() == at::kLong, "scatter_add: the index must be int64, not ",
              describe(index));
  bool fits = index.dim() == x.dim() && src.dim() == x.dim();
  for (int64_t d = 0; fits && d < x.dim(); ++d)
    fits = index.size(d) <= src.size(d) && (d == along || index.size(d) <= x.size(d));
  LATHE_CHECK(fits || index.numel() == 0, "scatter_add(", describe(x.data()), ", ",
              describe(src.data()), "): index ", describe(index),
              " must be within src's shape, and within x's except along dim ", along);
  if (index.numel() == 0) return x + 0;
  Variable part = src;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (index.size(d) < src.size(d)) part = slice(part, d, 0, index.size(d));
  }
  return apply(ScatterAdd{.dim = dim, .index = index}, x, part);
}

}  // namespace lathe
