// Declares the collectives of tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"): the tensor
// ranks (dist/world.h) compute a layer together, each with a part of its weights. A matrix that is
// cut along its outputs takes its input from copy_to_tensor_ranks(). The output of a matrix that is
// cut along its inputs goes through reduce_from_tensor_ranks().
//
// Every tensor rank calls the same ops in the same order. Tensors that are not cut, and their
// gradients, are bitwise equal on all tensor ranks. With one tensor rank, each op returns its
// input's values. Where a rank has only part of the positions (dist.sequence_parallel), use
// dist/sequence_ranks.h: copy_to_tensor_ranks() and reduce_from_tensor_ranks() throw Exit::usage.
#pragma once

#include "autograd/tensor_cut.h"
#include "autograd/variable.h"

namespace lathe {

/// Returns `x`, which must be the same on all tensor ranks. The gradient of `x` is the sum of the
/// result's gradients over the tensor ranks.
Variable copy_to_tensor_ranks(const Variable& x);
/// Returns the sum of `x` over the tensor ranks, which is bitwise equal on all of these ranks. The
/// gradient of `x` is the gradient of the result. Low-precision inputs are added in float32 and
/// rounded once.
Variable reduce_from_tensor_ranks(const Variable& x);
/// Returns the complete tensor, of which `x` is this rank's part along the last dimension. The
/// gradient of `x` is this rank's part of the result's gradient. `cut` is the cut of the weight
/// that computed `x`: along dimension 0, in one section.
Variable gather_from_tensor_ranks(const Variable& x, const TensorCut& cut);

/// Returns the complete tensor of which `part` is this rank's part. `part` must be contiguous. This
/// call is a collective and records no graph.
at::Tensor join_over_tensor_ranks(const at::Tensor& part, const TensorCut& cut);

/// Returns the rows `ids` of an embedding table [V, C] whose rows are cut among the tensor ranks.
/// ids int64 [...] -> [..., C].
Variable embedding_of_tensor_ranks(const at::Tensor& ids, const Variable& weight);

/// Returns the cross-entropy summed over the targets [N] that are not -100 and divided by `divisor`
/// (0: by the number of these targets). `cut` describes how the rows of the head, and therefore the
/// columns of the logits [N, V], are divided among the tensor ranks. `logits` has the columns of
/// this rank. No rank receives the logits of another rank.
Variable cross_entropy_of_tensor_ranks(const Variable& logits, const TensorCut& cut,
                                       const at::Tensor& targets, double divisor);

}  // namespace lathe
