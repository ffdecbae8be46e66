// Implements sequence parallelism (Korthikanti et al. 2022, "Reducing activation recomputation in
// large transformer models"): while a model runs its blocks, each tensor rank (dist/world.h) has
// some of the positions of the residual stream, and computes their norms, dropout and residual
// additions. Layers that are cut among the tensor ranks compute all positions: a matrix that is cut
// along its outputs gathers its input, and the output of a matrix that is cut along its inputs is
// summed and scattered. Together, these gathers and scatters send as many bytes as the all-reduces
// of tensor parallelism without sequence parallelism. The backward pass gathers inputs again, which
// adds a quarter to the bytes if layers with the same input are fused into one op.
//
// In a block, the gradient of a parameter that is not cut covers only this rank's positions.
// sum_block_gradients() sums these gradients over the tensor ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <limits>
#include <span>

#include "autograd/parameter.h"
#include "autograd/recompute.h"
#include "autograd/sequence_split.h"
#include "autograd/variable.h"
#include "core/mode.h"
#include "dist/config.h"

namespace lathe {

/// Returns whether the tensor ranks of this run divide the residual stream.
bool divides_sequence(const DistConfig& config);

/// While this object exists, forward passes that record a graph divide positions: if a tensor [B,
/// T, C] enters the model's blocks, each tensor rank computes only T / ranks of the T positions
/// there. The number of tensor ranks must divide T.
class DivideSequence : ModeGuard, public SequenceSplit {
 public:
  DivideSequence();
  Variable enter(const Variable& x) const override;
  Variable leave(const Variable& y) const override;
  const SequencePart& part() const override { return part_; }
  /// Returns whether a forward pass has run blocks since this object was made.
  bool ran_blocks() const { return ran_blocks_; }

 private:
  SequencePart part_;
  mutable bool ran_blocks_ = false;
};

/// Returns this process's positions [B, T / ranks, C] of `whole` [B, T, C], which all tensor ranks
/// have. The gradient of `whole` is gathered from all ranks.
Variable split_sequence(const Variable& whole);
/// Gathers `x` [B, T / ranks, C] from all tensor ranks, in the order of ranks, as [B, T, C]. The
/// gradient of the result must be the same on all ranks (all_gather() does not require this). The
/// gradient of `x` is this process's part of the result's gradient.
Variable join_sequence(const Variable& x);

/// Returns the input of a matrix that is cut along its outputs, given the input `x` of the layer:
/// copy_to_tensor_ranks(x) or, in a divided block, x at all positions,
/// [B, T / ranks, C] -> [B, T, C].
Variable input_of_cut_outputs(const Variable& x);
/// Returns f(input_of_cut_outputs(x)), where `f` computes a matrix product. In a divided block,
/// saves only this process's positions of the input, and the backward pass gathers the input again.
/// While a SavedPacker is active, the gathered input is saved instead. `f` is copied and must meet
/// the conditions for the fn of recompute() (autograd/recompute.h).
template <class F>
auto with_input_of_cut_outputs(const Variable& x, const F& f) {
  if (mode().sequence_part == nullptr || mode().packer != nullptr)
    return f(input_of_cut_outputs(x));
  // Keep the results of all matrix products, so that only the input is gathered again.
  Selection results{.share = std::numeric_limits<double>::infinity()};
  const auto gathered = [f](const Variable& part) {
    const SplitBlock scope(*mode().sequence_split);
    return f(input_of_cut_outputs(part));
  };
  return recompute_selectively(results, gathered, x);
}
/// Returns the output of a matrix that is cut along its inputs, given this rank's term `y` of that
/// output: reduce_from_tensor_ranks(y) or, in a divided block, the sum at the positions of this
/// process, [B, T, C] -> [B, T / ranks, C].
Variable output_of_cut_inputs(const Variable& y);
/// Returns `parameter`, which is not cut, for use with this rank's part of the outputs of a cut
/// layer. The gradient of `parameter` becomes the sum over the tensor ranks; in a divided block,
/// sum_block_gradients() computes this sum.
Variable parameter_of_cut_outputs(const Variable& parameter);
/// Throws Exit::usage in a divided block, because `layer` needs whole rows. The message ends with
/// `remedy`, which advises the user what to do.
void require_whole_rows(const char* layer, const char* remedy);

/// For each uncut parameter of a block, replaces the gradient by the sum of the gradients of the
/// tensor ranks. `gradient(i)` returns the gradient of parameter i, or the part of it for the
/// elements that this data rank owns; undefined if there is none. This call is a collective of the
/// tensor ranks, whose gradients must have the same sizes.
void sum_block_gradients(std::span<const NamedParameter> parameters,
                         const std::function<at::Tensor(size_t i)>& gradient);

}  // namespace lathe
