// Sequence parallelism (Korthikanti et al. 2022, "Reducing activation recomputation in large
// transformer models"): while a model runs its blocks, each tensor rank (dist/world.h) has some of
// the positions of the residual stream, of which it computes norms, dropout and sums. Layers that
// are cut compute all positions: a matrix that is cut along its outputs gathers its input, and the
// output of a matrix that is cut along its inputs is summed and scattered. Together these send as
// many bytes as the sums of tensor parallelism alone. The backward pass gathers inputs again, which
// adds a quarter if the layers with the same input are one fused op.
//
// A parameter of a block that is not cut has the gradient of this rank's positions only, so
// gradients must be summed over the tensor ranks: sum_block_gradients().
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

/// While alive, blocks of passes with a graph compute only 1 / ranks of the positions that this
/// process has of each row [B, T, C]. The number of tensor ranks must divide T.
class DivideSequence : ModeGuard, public SequenceSplit {
 public:
  DivideSequence();
  Variable enter(const Variable& x) const override;
  Variable leave(const Variable& y) const override;
  const SequencePart& part() const override { return part_; }
  /// Returns whether a forward pass has run blocks.
  bool ran_blocks() const { return ran_blocks_; }

 private:
  SequencePart part_;
  mutable bool ran_blocks_ = false;
};

/// Returns the positions of this process in rows [B, T, C] that all tensor ranks have. The gradient
/// of `whole` is gathered from all ranks.
Variable split_sequence(const Variable& whole);
/// Returns x [B, T / ranks, C] of all tensor ranks, in their order: [B, T, C]. The gradient of the
/// result must be the same on all ranks, unlike that of all_gather()'s result. The gradient of `x`
/// is this process's part of it.
Variable join_sequence(const Variable& x);

/// Returns the input of a matrix that is cut along its outputs, given the input `x` of the layer:
/// copy_to_tensor_ranks(x) or, in a divided block, x at all positions,
/// [B, T / ranks, C] -> [B, T, C].
Variable input_of_cut_outputs(const Variable& x);
/// Returns f(input_of_cut_outputs(x)), where `f` computes a matrix product. In a divided block,
/// saves only this process's positions of the input, and the backward pass gathers the input again.
/// With a SavedPacker, the gathered input is saved. `f` is copied and must meet the conditions for
/// the fn of recompute() (autograd/recompute.h).
template <class F>
auto with_input_of_cut_outputs(const Variable& x, const F& f) {
  if (mode().sequence_part == nullptr || mode().packer != nullptr)
    return f(input_of_cut_outputs(x));
  Selection results{.share = std::numeric_limits<double>::infinity()};
  const auto gathered = [f](const Variable& part) {
    const SplitBlock scope(*mode().sequence_split);
    return f(input_of_cut_outputs(part));
  };
  return recompute_selectively(results, gathered, x);
}
/// Returns the output of a matrix that is cut along its inputs, given this rank's term `y` of it:
/// reduce_from_tensor_ranks(y) or, in a divided block, the sum at the positions of this process,
/// [B, T, C] -> [B, T / ranks, C].
Variable output_of_cut_inputs(const Variable& y);
/// Returns a parameter that is not cut, for use with this rank's part of the outputs of a cut
/// layer: its gradient becomes the sum over the tensor ranks, in a divided block by
/// sum_block_gradients().
Variable parameter_of_cut_outputs(const Variable& parameter);
/// Throws Exit::usage in a divided block, with a remedy: `layer` needs whole rows.
void require_whole_rows(const char* layer, const char* remedy);

/// Replaces the gradient of each parameter of a block that is not cut by its sum over the tensor
/// ranks. `gradient(i)` is the gradient of parameter i, or of the elements that this data rank
/// owns; undefined if there is none. A collective of the tensor ranks, whose gradients must have
/// the same sizes.
void sum_block_gradients(std::span<const NamedParameter> parameters,
                         const std::function<at::Tensor(size_t i)>& gradient);

}  // namespace lathe
