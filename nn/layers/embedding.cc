#include "nn/layers/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "dist/tensor_ranks.h"
#include "nn/module_call.h"

namespace lathe {

Embedding::Embedding(int64_t rows, int64_t channels, const Role& role_)
    : weight(new_parameter({rows, channels})), role(role_) {}

Variable Embedding::operator()(const at::Tensor& ids) const {
  ModuleCall call(*this, {{'C', weight.size(1)}});
  return call.result(
      is_cut(weight, 0) ? embedding_of_tensor_ranks(ids, weight) : embedding(ids, weight), "... C");
}

EmbeddingBag::EmbeddingBag(int64_t rows, int64_t channels, BagMode bag_,
                           std::optional<int64_t> padding_)
    : weight(new_parameter({rows, channels})), bag(bag_), padding(padding_) {}

// Sums or averages the rows of each bag. BagMode::max takes the maximum over the slice of each
// bag's rows, so callers must pass rows in the order of their bags.
Variable EmbeddingBag::reduce(const at::Tensor& ids_N, const at::Tensor& bag_N, int64_t bags,
                              const Variable& scales_N) const {
  LATHE_CHECK(!scales_N.defined() || bag == BagMode::sum,
              "EmbeddingBag: scales are for BagMode::sum");

  at::Tensor ids = ids_N, bag_of = bag_N;
  Variable scales = scales_N;
  if (padding) {
    // Drop padding ids before the lookup, so that they get no gradient and do not count in a mean.
    const at::Tensor counted = ids.ne(*padding).nonzero().squeeze(1);
    ids = ids.index_select(0, counted);
    bag_of = bag_of.index_select(0, counted);
    if (scales.defined()) scales = index(scales, {counted});
  }

  Variable rows = embedding(ids, weight);
  const std::vector<int64_t> sizes{bags, weight.size(1)};

  const auto rows_of_bags = [&] {
    return at::zeros({bags}, bag_of.options()).scatter_add_(0, bag_of, at::ones_like(bag_of));
  };

  if (bag == BagMode::max) {
    const at::Tensor counts = rows_of_bags();
    std::vector<Variable> out;
    int64_t begin = 0;
    for (int64_t b = 0; b < bags; ++b) {
      const int64_t n = counts[b].item<int64_t>();
      // An empty bag gives zeros, as in torch.
      out.push_back(n == 0 ? Variable(at::zeros({1, sizes[1]}, rows.data().options()))
                           : amax(slice(rows, 0, begin, begin + n), 0, /*keepdim=*/true));
      begin += n;
    }
    return out.empty() ? Variable(at::zeros(sizes, rows.data().options())) : cat(out, 0);
  }

  if (scales.defined()) rows = rows * unsqueeze(scales, 1);
  // index_backward adds each row to its bag, and has second derivatives.
  Variable sums = index_backward(rows, {bag_of}, sizes);
  if (bag == BagMode::sum) return sums;

  // clamp_min makes the mean of an empty bag 0 / 1.
  return sums / Variable(rows_of_bags().clamp_min(1).unsqueeze(1).to(sums.dtype()));
}

Variable EmbeddingBag::operator()(const at::Tensor& ids_BL, const Variable& scales_BL) const {
  ModuleCall call(*this, {{'C', weight.size(1)}});
  call.input("ids", ids_BL, "B L");
  call.input("scales", scales_BL, "B L");
  const int64_t b = ids_BL.size(0), l = ids_BL.size(1);
  const at::Tensor bag_N = at::arange(b, ids_BL.options()).repeat_interleave(l);
  return call.result(reduce(ids_BL.reshape({-1}), bag_N, b,
                            scales_BL.defined() ? reshape(scales_BL, {-1}) : scales_BL),
                     "B C");
}

Variable EmbeddingBag::operator()(const at::Tensor& ids_N, const at::Tensor& offsets_B,
                                  const Variable& scales_N) const {
  ModuleCall call(*this, {{'C', weight.size(1)}});
  call.input("ids", ids_N, "N");
  call.input("offsets", offsets_B, "B");
  call.input("scales", scales_N, "N");
  const int64_t bags = offsets_B.size(0), n = ids_N.size(0);
  const at::Tensor ends = at::cat(
      {offsets_B.slice(0, 1), at::full({std::min<int64_t>(bags, 1)}, n, offsets_B.options())});
  const at::Tensor lengths = ends - offsets_B;
  LATHE_CHECK(
      bags == 0 ? n == 0 : offsets_B[0].item<int64_t>() == 0 && lengths.ge(0).all().item<bool>(),
      call.text(), ": offsets must begin at 0, not decrease, and not exceed the number of ids, ",
      n);
  const at::Tensor bag_N = at::arange(bags, offsets_B.options()).repeat_interleave(lengths);
  return call.result(reduce(ids_N, bag_N, bags, scales_N), "B C");
}

}  // namespace lathe
