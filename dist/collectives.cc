#include "dist/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "autograd/op.h"
#include "core/dtype.h"
#include "core/tree_sum.h"
#include "dist/group.h"
#include "dist/world.h"

namespace lathe {
namespace {

const RankAxis& ranks_on(Axis axis) {
  switch (axis) {
    case Axis::data: return world().data();
    case Axis::context: return world().context();
    case Axis::tensor: break;
  }
  return world().tensor();
}

Group& group_of(Axis axis) {
  switch (axis) {
    case Axis::data: return world().ops();
    case Axis::context: return world().contexts();
    case Axis::tensor: break;
  }
  return world().layers();
}

/// Returns the bounds [ranks + 1] of the ranks' shares in a flat tensor with `n` elements per rank.
std::vector<int64_t> equal_cuts(int64_t n, Axis axis) {
  std::vector<int64_t> cuts;
  for (int64_t r = 0; r <= ranks_on(axis).size; ++r) cuts.push_back(r * n);
  return cuts;
}

/// Cuts `x` into equal parts along `dim`, and returns them as a contiguous tensor [ranks, ...].
at::Tensor parts_of(const at::Tensor& x, int64_t dim, Axis axis) {
  const int64_t ranks = ranks_on(axis).size;
  LATHE_CHECK(x.size(dim) % ranks == 0, "dim ", dim, " has ", x.size(dim),
              " elements, which can't be divided equally among ", ranks, " ranks");
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim)] /= ranks;
  sizes.insert(sizes.begin() + dim, ranks);
  return x.reshape(sizes).movedim(dim, 0).contiguous();
}

/// Returns parts [ranks, ...] concatenated along `dim`.
at::Tensor joined(const at::Tensor& parts, int64_t dim) {
  std::vector<int64_t> sizes = parts.sizes().vec();
  sizes.erase(sizes.begin());
  sizes[static_cast<size_t>(dim)] *= parts.size(0);
  return parts.movedim(0, dim).reshape(sizes);
}

/// Sends part r of [ranks, ...] to rank r, and returns what was received from each rank.
at::Tensor exchanged(const at::Tensor& parts, Axis axis) {
  if (ranks_on(axis).size == 1) return parts.clone();
  at::Tensor in = parts.view({-1});
  at::Tensor out = at::empty_like(in);
  const auto cuts = equal_cuts(in.numel() / ranks_on(axis).size, axis);
  world().guarded([&] { group_of(axis).all_to_all(out, in, cuts); });
  return out.view(parts.sizes());
}

/// Returns the tensors `x` of all ranks, stacked as [ranks, ...].
at::Tensor gathered(const at::Tensor& x, Axis axis) {
  const auto [rank, size] = ranks_on(axis);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), size);
  at::Tensor all = at::empty(sizes, x.options());
  all.select(0, rank).copy_(x);
  if (size == 1) return all;
  at::Tensor flat = all.view({-1});
  world().guarded([&] { group_of(axis).all_gather(flat, equal_cuts(x.numel(), axis)); });
  return all;
}

/// Returns the sum of `parts` [ranks, ...] over the ranks. Low-precision values are added in
/// float32. May overwrite `parts`.
at::Tensor summed(const at::Tensor& parts) {
  const at::ScalarType dtype = parts.scalar_type();
  // ATen also adds two low-precision tensors in float32, and rounds once.
  const bool is_widened = parts.size(0) != 2 && c10::isReducedFloatingType(dtype);
  return sum_over_ranks(is_widened ? parts.to(at::kFloat) : parts).to(dtype);
}

struct AllReduce {
  static constexpr OpInfo info{.name = "all_reduce"};
  at::Tensor forward(const at::Tensor& x) { return all_reduce(x); }
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {all_reduce(dy)};
  }
};

struct AllGather {
  static constexpr OpInfo info{.name = "all_gather", .each = {0, 1}};
  int64_t dim;
  Axis axis;
  at::Tensor forward(const at::Tensor& x) { return all_gather(x, dim, axis); }
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {reduce_scatter(dy, dim, axis)};
  }
};

struct ReduceScatter {
  static constexpr OpInfo info{.name = "reduce_scatter", .each = {1, 0}};
  int64_t dim;
  Axis axis;
  at::Tensor forward(const at::Tensor& x) { return reduce_scatter(x, dim, axis); }
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {all_gather(dy, dim, axis)};
  }
};

struct AllToAll {
  static constexpr OpInfo info{.name = "all_to_all", .each = {0, 0}};
  int64_t dim;
  at::Tensor forward(const at::Tensor& x) { return all_to_all(x, dim); }
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {all_to_all(dy, dim)};
  }
};

}  // namespace

at::Tensor sum_over_ranks(const at::Tensor& parts) {
  // An in-place sum of two parts would be a view, which keeps the memory of both parts.
  if (parts.size(0) == 2) return parts.select(0, 0) + parts.select(0, 1);
  TreeSum<at::Tensor> sum;
  const auto plus = [](const at::Tensor& a, const at::Tensor& b) { return a.add_(b); };
  for (int64_t r = 0; r < parts.size(0); ++r) sum.add(parts.select(0, r), plus);
  return sum.finish(plus);
}

at::Tensor all_gather(const at::Tensor& x, int64_t dim, Axis axis) {
  return joined(gathered(x, axis), wrap_dim(dim, x.dim()));
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, Axis axis) {
  return summed(exchanged(parts_of(x, wrap_dim(dim, x.dim()), axis), axis));
}

at::Tensor all_to_all(const at::Tensor& x, int64_t dim, Axis axis) {
  const int64_t at = wrap_dim(dim, x.dim());
  return joined(exchanged(parts_of(x, at, axis), axis), at);
}

at::Tensor all_reduce(const at::Tensor& x, Axis axis) {
  // With two ranks, exchanging complete tensors takes one message instead of two, and sends no
  // additional bytes.
  const int64_t ranks = ranks_on(axis).size;
  if (ranks == 2) return summed(gathered(x, axis));

  // Each rank adds up one part, and then all ranks gather the sums. Pad the tensor if the number of
  // ranks does not divide its size.
  const int64_t n = (x.numel() + ranks - 1) / ranks;
  at::Tensor flat = x.reshape({-1});
  if (ranks * n != x.numel()) {
    flat = at::zeros({ranks * n}, x.options());
    flat.narrow(0, 0, x.numel()).copy_(x.reshape({-1}));
  }
  const at::Tensor sums = all_gather(reduce_scatter(flat, 0, axis), 0, axis);
  return sums.narrow(0, 0, x.numel()).view(x.sizes());
}

Variable all_reduce(const Variable& x) { return apply(AllReduce{}, x); }
Variable all_gather(const Variable& x, int64_t dim, Axis axis) {
  return apply(AllGather{dim, axis}, x);
}
Variable reduce_scatter(const Variable& x, int64_t dim, Axis axis) {
  return apply(ReduceScatter{dim, axis}, x);
}
Variable all_to_all(const Variable& x, int64_t dim) { return apply(AllToAll{dim}, x); }

}  // namespace lathe
