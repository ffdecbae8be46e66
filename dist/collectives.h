// Declares collectives as differentiable ops, for models that combine values of several processes,
// such as batch statistics or the negatives of a contrastive loss. Sums are computed in the order
// of core/tree_sum.h, so their bits do not depend on the communication library.
//
// Every rank calls the same ops in the same order, from the training thread, with tensors of the
// same shape and dtype. Each backward pass is also a collective, so all ranks must need the same
// gradients. A loss that every rank computes counts once for each rank: the gradient of x on a rank
// is the gradient of the sum of all ranks' losses, as in torch.distributed.nn.functional. In a
// single process, each op copies its input. The ops throw Exit::peer_lost if a rank was lost. "All
// ranks" means the ranks of `axis`: by default, and in ops without this argument, the data ranks.
#pragma once

#include "autograd/variable.h"

namespace lathe {

/// The axis (dist/world.h) whose ranks take part in a collective.
enum class Axis : uint8_t { data, context, tensor };

/// Returns the sum of `x` over all ranks, which is bitwise equal on all ranks. Low-precision inputs
/// are added in float32 and rounded once.
Variable all_reduce(const Variable& x);
/// Returns the tensors `x` of all ranks, concatenated along `dim` in the order of ranks.
Variable all_gather(const Variable& x, int64_t dim = 0, Axis axis = Axis::data);
/// Sums `x` over all ranks, cuts the sum into equal parts along `dim`, and returns this rank's
/// part. Throws if the number of ranks does not divide the size of `dim`.
Variable reduce_scatter(const Variable& x, int64_t dim = 0, Axis axis = Axis::data);
/// Cuts `x` into equal parts along `dim`, sends part r to rank r, and returns the parts received,
/// concatenated along `dim` in the order of ranks. Throws if the number of ranks does not divide
/// the size of `dim`.
Variable all_to_all(const Variable& x, int64_t dim = 0);

/// Computes all_reduce() of a tensor; records no graph.
at::Tensor all_reduce(const at::Tensor& x, Axis axis = Axis::data);
/// Computes all_gather() of a tensor; records no graph.
at::Tensor all_gather(const at::Tensor& x, int64_t dim = 0, Axis axis = Axis::data);
/// Computes reduce_scatter() of a tensor; records no graph.
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim = 0, Axis axis = Axis::data);
/// Computes all_to_all() of a tensor; records no graph.
at::Tensor all_to_all(const at::Tensor& x, int64_t dim = 0, Axis axis = Axis::data);

/// Returns the sum of `parts` [ranks, ...] over the ranks in the order of core/tree_sum.h, in the
/// dtype of `parts`. May overwrite `parts` and return a view of it, except if there are two ranks.
at::Tensor sum_over_ranks(const at::Tensor& parts);

}  // namespace lathe
