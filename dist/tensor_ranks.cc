#include "dist/tensor_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/plain.h"
#include "core/dtype.h"
#include "core/kernels/loss.h"
#include "core/sum.h"
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

/// Computes the cross-entropy of targets in a vocabulary that is cut among the tensor ranks.
/// Shapes: N rows, V columns of this rank.
struct CrossEntropyOfTensorRanks {
  static constexpr OpInfo info{.name = "cross_entropy_of_tensor_ranks", .amp = Amp::promote};
  Saved index;               // [N, 1]: the column of the target, 0 if another rank has it
  Saved is_others, ignored;  // [N, 1]: whether another rank has the target; whether there is none
  double scale;
  Saved logits = Saved::input(0);
  Saved largest{}, sums{};  // [N, 1]: of all ranks; the sum is of e^(z - largest)

  // loss = scale * sum over counted rows of largest + log(sum of e^(z - largest)) - z[target]
  at::Tensor forward(const at::Tensor& z) {
    logits = z;
    const at::ScalarType wide = z.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto [most, at_most] = z.max(1, /*keepdim=*/true);
    const at::Tensor own_sum = sum_of_exponentials(z, most, at_most, wide);
    const at::Tensor picked = z.gather(1, index.data()).to(wide).masked_fill_(is_others.data(), 0);

    // [ranks, N, 3]
    const at::Tensor mine = at::cat({most.to(wide), own_sum, picked}, 1);
    const at::Tensor all = all_gather(mine.unsqueeze(0), 0, Axis::tensor);
    const at::Tensor tops = all.narrow(2, 0, 1);
    largest = tops.amax(0);
    sums = sum_over_ranks(all.narrow(2, 1, 1) * (tops - largest.data()).exp_());

    const at::Tensor target = sum_over_ranks(all.narrow(2, 2, 1).clone());
    // Large logits cancel exactly in target - largest.
    const at::Tensor losses = sums.data().log().sub_(target - largest.data());
    return fixed_sum(losses.masked_fill_(ignored.data(), 0)).mul_(scale);
  }
  // dlogits = scale * dy * (softmax(logits) - onehot(target)), 0 in ignored rows
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const {
    const at::Tensor factor = (dy * scale).expand_as(sums.data());
    at::Tensor dz = (logits.data() - largest.data()).exp_();
    dz.mul_(factor / sums.data());
    dz.scatter_add_(1, index.data(), factor.neg().masked_fill_(is_others.data(), 0));
    return {dz.masked_fill_(ignored.data(), 0).to(logits.data().scalar_type())};
  }
  Grads<1, Variable> backward(const Variable& dy, Needs<1> needs) const {
    return plain_gradients<1>(
        {logits.as<Variable>()}, needs, {dy}, [&](const std::vector<Variable>& in) {
          const Variable shifted = wide_of(in[0]) - Variable(largest.data());
          const Variable sum_of_all =
              reduce_from_tensor_ranks(sum(exp(shifted), {1}, /*keepdim=*/true));
          const Variable picked = reduce_from_tensor_ranks(
              masked_fill(gather(shifted, 1, index.data()), is_others.data(), 0));
          return std::vector{sum(masked_fill(log(sum_of_all) - picked, ignored.data(), 0)) * scale};
        });
  }
  static OpFlops flops(const at::Tensor& z, const at::Tensor&) { return flops_each(z, 5, 3); }

 private:
  /// Returns the sum of e^(z - most) over the columns of each row, [N, 1].
  static at::Tensor sum_of_exponentials(const at::Tensor& z, const at::Tensor& most,
                                        const at::Tensor& at_most, at::ScalarType wide) {
    if (!kernel_ready(z)) return (z.to(wide) - most).exp_().sum(1, /*keepdim=*/true);
    // The cross-entropy of the column with the largest logit is the logarithm of the sum.
    const at::Tensor rows = z.contiguous(), columns = at_most.contiguous(),
                     logs = at::empty(most.sizes(), z.options().dtype(at::kFloat));
    cross_entropy_rows(matrix_of(rows), rows.size(0), rows.size(1), /*padding=*/0,
                       columns.const_data_ptr<int64_t>(), /*ignore=*/-100, /*weight=*/1,
                       /*gradient=*/false, logs.mutable_data_ptr<float>());
    return logs.exp();
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

  // If no position has a target, the loss is 0.
  const double counted =
      divisor != 0 ? divisor : std::max(1.0, ignored.logical_not().sum().item<double>());
  return apply(
      CrossEntropyOfTensorRanks{
          .index = index, .is_others = is_others, .ignored = ignored, .scale = 1 / counted},
      logits);
}

}  // namespace lathe
