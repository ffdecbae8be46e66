// Implements context parallelism: the context ranks (dist/world.h) compute the same rows of tokens
// together, each with some of the positions (core/position_part.h). Layers that compute each
// position independently need no change. Attention gathers the keys and values of all ranks, as in
// the training of Llama 3 (Dubey et al. 2024, section 3.3.2), and the gradients of keys and values
// are summed over the ranks. The tensors that a rank saves for backward therefore include the keys
// and values of complete rows.
//
// Every context rank calls the same ops in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include "autograd/ops/attention.h"
#include "autograd/variable.h"
#include "core/mode.h"
#include "core/position_part.h"

namespace lathe {

/// While this object exists, the forward passes of its thread compute only this process's positions
/// of each row. Has no effect if there is only one context rank.
class DividePositions : ModeGuard {
 public:
  DividePositions();

 private:
  PositionPart part_;
};

/// Returns this process's positions of `rows`: [B, T, ...] -> [B, T / ranks, ...]. Returns `rows`
/// itself if positions are not divided or `rows` is undefined. Throws if twice the number of ranks
/// does not divide T.
at::Tensor own_positions(const at::Tensor& rows);

/// Gathers `x` from all context ranks: [B, T / ranks, C] -> [B, T, C], in the order of positions.
/// The gradient of `x` is the sum over the ranks of the gradients for its positions.
Variable gather_from_context_ranks(const Variable& x);
/// Returns the sum of `rows` over the context ranks, at the positions of this process: [B, T, C] ->
/// [B, T / ranks, C]. The gradient of `rows` is gathered from all ranks: [B, T, C] in the order of
/// positions.
Variable sum_own_positions(const Variable& rows);

/// Computes the causal attention of this process's queries to the keys and values of all context
/// ranks: query [B, T / ranks, H D] and key_value [B, T / ranks, 2 K D], keys before values, ->
/// [B, T / ranks, H D], with H = `heads` and K = `kv_heads`. The document starts `starts`
/// [B, T / ranks] are positions in complete rows; see attention() in autograd/ops.h. Call it only
/// while positions are divided (Mode::position_part is not null).
Variable attention_of_context_ranks(const Variable& query, const Variable& key_value, int64_t heads,
                                    int64_t kv_heads, const at::Tensor& starts = {},
                                    const ScoreOptions& scores = {});

}  // namespace lathe
