// Declares a step that updates each parameter during the backward pass (memory.update_in_backward).
#pragma once

#include "data/data.h"
#include "train/session/session.h"

namespace lathe {

/// Returns how often a step runs each forward and backward pass: twice if it updates in backward
/// and clips gradients by their norm, otherwise once.
int passes_in_step(const RunConfig& config);

/// Runs the forward and the backward pass of one micro-batch. Updates each parameter as soon as its
/// gradient is complete, then frees the gradient (Lv et al. 2023, "Full parameter fine-tuning for
/// large language models with limited resources"). The result is bitwise equal to the result of a
/// step that keeps all gradients. If gradients are clipped by their norm, both passes run twice,
/// first to compute the norm.
///
/// If there are several processes, each process has one micro-batch of the step. The processes
/// exchange their gradients during the backward pass, in buckets, and each process updates all
/// parameters.
///
/// `divisor` is the number by which the loss is divided, and `lr` is the step's learning rate.
/// Returns the loss of the step, float32 []. Adds the seconds for which this process waited for
/// other processes to `waited`. If a gradient is not finite, its parameter is not updated, and
/// Optimizer::control() names the step as failed. Requires complete parameters in each process, and
/// no loss scale.
at::Tensor run_updating_step(Session& session, const Batch& batch, int64_t step, double divisor,
                             double lr, double& waited);

}  // namespace lathe
