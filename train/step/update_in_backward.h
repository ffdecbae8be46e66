// A step that updates each parameter during backward (memory.update_in_backward).
#pragma once

#include "data/data.h"
#include "train/session/session.h"

namespace lathe {

/// Runs forward and backward on one micro-batch, and updates each parameter and frees its gradient
/// as soon as that is complete (Lv et al. 2023, "Full parameter fine-tuning for large language
/// models with limited resources"). The result has the bits of a step that keeps all gradients.
/// If gradients are clipped by their norm, forward and backward run twice, first for the norm.
///
/// Of several processes, each has one micro-batch of the step. Their gradients are exchanged during
/// the backward pass, in buckets, and each process updates all parameters with the sums.
///
/// `divisor`: of the loss; `lr`: the step's learning rate. Returns the loss of the step, float32
/// [], and adds the seconds of waiting for other processes to `waited`. A gradient that is not
/// finite leaves its parameter untouched, and the optimizer's control names the step as failed.
/// Requires complete parameters on each process, and no loss scale.
at::Tensor run_updating_step(Session& session, const Batch& batch, int64_t step, double divisor,
                             double lr, double& waited);

}  // namespace lathe
