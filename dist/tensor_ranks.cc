#include "dist/tensor_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "dist/collectives.h"
#include "dist/group.h"
#include "dist/sequence_ranks.h"
#include "dist/world.h"

namespace lathe {
namespace {

struct CopyToTensorRanks {
  static constexpr OpInfo info{.name = "copy_to_tensor_ranks", .each = {0, 1}};
  at::Tensor forward(const at::Tensor& x) { return x.view(x.sizes()); }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const { return {all_reduce(dy, Axis::tensor)}; }
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const {
    return {reduce_from_tensor_ranks(dy)};
  }
};

struct ReduceFromTensorRanks {
  static constexpr OpInfo info{.name = "reduce_from_tensor_ranks", .each = {1, 0}};
  at::Tensor forward(const at::Tensor& x) { return all_reduce(x, Axis::tensor); }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const { return {dy}; }
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const {
    return {copy_to_tensor_ranks(dy)};
  }
};

struct GatherFromTensorRanks {
  static constexpr OpInfo info{.name = "gather_from_tensor_ranks", .each = {0, 0}};
  TensorCut cut;

  at::Tensor forward(const at::Tensor& x) {
    TensorCut columns = cut;
    columns.dim = x.dim() - 1;
    return join_over_tensor_ranks(x.contiguous(), columns);
  }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const {
    const ElementRange own = cut.range(0, cut.part);
    return {dy.slice(-1, own.begin, own.end)};
  }
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const {
    const ElementRange own = cut.range(0, cut.part);
    return {slice(dy, -1, own.begin, own.end)};
  }
};

}  // namespace

at::Tensor join_over_tensor_ranks(const at::Tensor& part, const TensorCut& cut) {
  const std::vector<int64_t> cuts = cut.flat_part_offsets(part.sizes());
  at::Tensor flat = at::empty({cuts.back()}, part.options());
  flat.narrow(0, cuts[static_cast<size_t>(cut.part)], part.numel()).copy_(part.view({-1}));
  if (cut.parts > 1) world().guarded([&] { world().layers().all_gather(flat, cuts); });
  return cut.join_flat(flat, part.sizes());
}

Variable copy_to_tensor_ranks(const Variable& x) {
  require_whole_rows("copy_to_tensor_ranks()", "use the functions of dist/sequence_ranks.h");
  return apply(CopyToTensorRanks{}, x);
}

Variable reduce_from_tensor_ranks(const Variable& x) {
  require_whole_rows("reduce_from_tensor_ranks()", "use the functions of dist/sequence_ranks.h");
  return apply(ReduceFromTensorRanks{}, x);
}

Variable gather_from_tensor_ranks(const Variable& x, const TensorCut& cut) {
  return apply(GatherFromTensorRanks{cut}, x);
}

Variable embedding_of_tensor_ranks(const at::Tensor& ids, const Variable& weight) {
  const TensorCut& cut = *cut_of(weight);
  const ElementRange own = cut.range(0, cut.part);
  const at::Tensor is_others = ids.ge(0)
                                   .logical_and(ids.lt(cut.sections.at(0)))
                                   .logical_and(ids.lt(own.begin).logical_or(ids.ge(own.end)));

  // An id outside the vocabulary stays outside this rank's rows, so that embedding() refuses it.
  const at::Tensor here = (ids - own.begin).masked_fill(is_others, 0);
  return reduce_from_tensor_ranks(masked_fill(embedding(here, weight), is_others.unsqueeze(-1), 0));
}

Variable cross_entropy_of_tensor_ranks(const Variable& logits, const TensorCut& cut,
                                       const at::Tensor& targets, double divisor) {
  const NamedRange range([] { return std::string("cross_entropy_of_tensor_ranks"); });
  const Variable z =
      cast(logits, logits.dtype() == at::kDouble ? at::kDouble : at::kFloat);  // [N, V / ranks]

  const at::Tensor ignored = targets.eq(-100).unsqueeze(1);  // [N, 1]
  const at::Tensor outside =
      targets.lt(0).logical_or(targets.ge(cut.sections.at(0))).logical_and(targets.ne(-100));
  LATHE_CHECK(!outside.any().item<bool>(), "target ",
              targets.masked_select(outside).min().item<int64_t>(), " is outside [0, ",
              cut.sections.at(0), ")");
  const ElementRange own = cut.range(0, cut.part);
  const at::Tensor is_others =
      targets.lt(own.begin).logical_or(targets.ge(own.end)).unsqueeze(1).logical_or(ignored);
  const at::Tensor index = (targets - own.begin).unsqueeze(1).masked_fill(is_others, 0);

  // Compute log_softmax(z)[target]. Subtract the largest logit of all ranks, which cancels and so
  // needs no gradient.
  const at::Tensor largest =
      all_gather(z.data().amax(1, /*keepdim=*/true), 1, Axis::tensor).amax(1, /*keepdim=*/true);
  const Variable shifted = z - Variable(largest);
  const Variable sums = reduce_from_tensor_ranks(sum(exp(shifted), {1}, /*keepdim=*/true));
  const Variable picked =
      reduce_from_tensor_ranks(masked_fill(gather(shifted, 1, index), is_others, 0));

  // If no position has a target, the loss is 0.
  const double counted =
      divisor != 0 ? divisor : std::max(1.0, ignored.logical_not().sum().item<double>());
  return sum(masked_fill(log(sums) - picked, ignored, 0)) * (1 / counted);
}

}  // namespace lathe
