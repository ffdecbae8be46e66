// Declares the forward and backward passes of micro-batches.
#pragma once

#include <functional>

#include "autograd/pipeline_stage.h"
#include "data/data.h"
#include "train/session/session.h"

namespace lathe {

/// Runs the forward and the backward pass of one micro-batch, and adds to the gradients. `loss`
/// computes the micro-batch's share of the step's loss. The backward pass begins with the gradient
/// `loss_scale` or, if that is undefined, with 1. Returns the loss as a scalar on the device.
at::Tensor run_micro_batch(const std::function<Variable()>& loss, Compute compute,
                           StepRandom random, const at::Tensor& loss_scale = {});
/// Runs a micro-batch through a session's model, under the session's keys of [memory] and its
/// train.detect_anomaly. `divisor`: the number of targets in the step. Throws Exit::usage if
/// memory.recompute is set but applies to none of the blocks that the model runs.
at::Tensor run_micro_batch(const Session& session, const Batch& batch, double divisor,
                           StepRandom random);
/// Runs a micro-batch through a session's model in the precision of `compute`, without a loss
/// scale.
at::Tensor run_micro_batch(const Session& session, const Batch& batch, double divisor,
                           StepRandom random, Compute compute);

/// Runs the forward pass of a micro-batch as a stage of a pipeline. `stage` exchanges tensors with
/// the other stages. Returns the loss on the last stage, and an undefined Variable on all other
/// stages.
Variable run_stage_forward(const Session& session, const Batch& batch, double divisor,
                           StepRandom random, PipelineStage& stage);
/// Runs the backward pass for run_stage_forward(). `root` is the last result of the forward pass on
/// this stage, and `dy` is the gradient of `root`. On the last stage, `root` is the loss, and `dy`
/// is the loss scale or undefined. If nothing else holds `dy`, the gradients are bitwise equal to
/// the gradients of one backward pass through all stages.
void run_stage_backward(const Session& session, const Variable& root, at::Tensor dy,
                        StepRandom random);

}  // namespace lathe
