// Implements indexing by positions and tensors.
#include <ATen/TensorOperators.h>
#include <ATen/core/List.h>
#include <ATen/ops/index.h>
#include <ATen/ops/where.h>

#include "autograd/ops/formula.h"
#include "core/dtype.h"

namespace lathe {
namespace {

using Tensors = std::vector<at::Tensor>;
using SavedTensors = std::vector<Saved>;

c10::List<std::optional<at::Tensor>> list_of(const Tensors& indices) {
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& t : indices) list.push_back(t.defined() ? std::optional(t) : std::nullopt);
  return list;
}
Tensors tensors_of(const SavedTensors& saved) {
  Tensors tensors;
  for (const Saved& s : saved) tensors.push_back(s.data());
  return tensors;
}
SavedTensors saved_of(const Tensors& tensors) { return {tensors.begin(), tensors.end()}; }
/// Defines index() and index_backward() for tensors, so that one backward formula works for tensors
/// and Variables.
at::Tensor index(const at::Tensor& x, const Tensors& indices) {
  return at::index(x, list_of(indices));
}
/// On CPUs, ATen's index_put_ adds float32 values by atomic additions of several threads, whose
/// order varies between runs. So this function adds with one thread: rows by index_add_, and other
/// elements in float64, for which index_put_ uses one thread.
at::Tensor index_backward(const at::Tensor& x, const Tensors& indices, at::IntArrayRef sizes) {
  const bool is_parallel = x.is_cpu() && x.scalar_type() == at::kFloat;
  if (!is_parallel) return x.new_zeros(sizes).index_put_(list_of(indices), x, /*accumulate=*/true);

  const bool is_of_rows = indices.size() == 1 && indices[0].defined() && !sizes.empty() &&
                          indices[0].scalar_type() == at::kLong;
  if (!is_of_rows) {
    return index_backward(x.to(at::kDouble), indices, sizes).to(at::kFloat);
  }
  const at::Tensor& index = indices[0];
  const at::Tensor rows = at::where(index.lt(0), index + sizes[0], index).reshape({-1});
  std::vector<int64_t> of_x = index.sizes().vec(), of_rows{rows.numel()};
  for (std::vector<int64_t>* all : {&of_x, &of_rows})
    all->insert(all->end(), sizes.begin() + 1, sizes.end());
  return x.new_zeros(sizes).index_add_(0, rows, x.expand(of_x).reshape(of_rows));
}

struct Select {
  static constexpr OpInfo info{.name = "select", .each = {0, 0}};
  int64_t dim, index;
  int64_t size = 0;
  at::Tensor forward(const at::Tensor& x) {
    dim = wrap_dim(dim, x.dim());
    size = x.size(dim);
    LATHE_CHECK(index >= -size && index < size, "index ", index, " is outside dim ", dim,
                " of size ", size);
    if (index < 0) index += size;
    return x.select(dim, index);
  }
  // dx = dy at the position, zeros elsewhere
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {slice_backward(unsqueeze(dy, dim), dim, index, index + 1, 1, size)};
  }
};

struct IndexOp {
  static constexpr OpInfo info{.name = "index", .each = {0, 1}};
  SavedTensors indices;
  c10::SmallVector<int64_t, 5> from{};
  at::Tensor forward(const at::Tensor& x) {
    from.assign(x.sizes().begin(), x.sizes().end());
    const Tensors taken = tensors_of(indices);
    for (const auto& t : taken) {
      LATHE_CHECK(!t.defined() || t.scalar_type() == at::kLong || t.scalar_type() == at::kBool,
                  "indices must be int64 positions or bool masks, not ", describe(t));
    }
    return index(x, taken);
  }
  // dx[indices] += dy
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {index_backward(dy, tensors_of(indices), from)};
  }
};

struct IndexBackward {
  static constexpr OpInfo info{.name = "index_backward", .each = {1, 0}};
  SavedTensors indices;
  c10::SmallVector<int64_t, 5> sizes;
  at::Tensor forward(const at::Tensor& x) { return index_backward(x, tensors_of(indices), sizes); }
  // dx = dy[indices]
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {index(dy, tensors_of(indices))};
  }
};

}  // namespace

Variable select(const Variable& x, int64_t dim, int64_t index) {
  return apply(Select{.dim = dim, .index = index}, x);
}
Variable index(const Variable& x, const Tensors& indices) {
  return apply(IndexOp{.indices = saved_of(indices)}, x);
}
Variable index_backward(const Variable& x, const Tensors& indices, at::IntArrayRef sizes) {
  return apply(IndexBackward{.indices = saved_of(indices), .sizes = {sizes.begin(), sizes.end()}},
               x);
}

}  // namespace lathe
