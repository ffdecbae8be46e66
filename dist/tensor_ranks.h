// The collectives of tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"): the tensor ranks
// (dist/world.h) compute a layer together, each with a part of its weights. A matrix that is cut
// along its outputs takes inputs from copy_to_tensor_ranks(); the product with a matrix that is cut
// along its inputs goes through reduce_from_tensor_ranks().
//
// Every tensor rank calls the same ops in the same order. What is not cut has the same bits on all
// of them, and so have its gradients. With one tensor rank, their values are those of the input.
#pragma once

#include "autograd/tensor_cut.h"
#include "autograd/variable.h"

namespace lathe {

/// Returns `x`, which is the same on all tensor ranks. Its gradient is the sum of theirs.
Variable copy_to_tensor_ranks(const Variable& x);
/// Returns the sum of `x` over the tensor ranks, with the same bits on each. The gradient of `x` is
/// that of the result. Low-precision inputs are added in float32 and rounded once.
Variable reduce_from_tensor_ranks(const Variable& x);
/// Returns the whole tensor, of which `x` is this rank's part along the last dimension. The
/// gradient of `x` is its part of the result's. `cut`: along dimension 0 of a matrix that computed
/// `x`, which has one section.
Variable gather_from_tensor_ranks(const Variable& x, const TensorCut& cut);

/// Returns the rows of an embedding whose rows are cut. ids int64 [...] -> [..., C].
Variable embedding_of_tensor_ranks(const at::Tensor& ids, const Variable& weight);

/// Returns the summed cross-entropy over the targets [N] that are not -100, divided by `divisor` (0
/// stands for their number), of logits [N, V] whose columns are cut as `cut` cuts the head's rows.
/// No rank gets another one's logits. `logits`: the columns of this rank.
Variable cross_entropy_of_tensor_ranks(const Variable& logits, const TensorCut& cut,
                                       const at::Tensor& targets, double divisor);

}  // namespace lathe
