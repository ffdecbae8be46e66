// Forward and backward passes of micro-batches.
#pragma once

#include <functional>

#include "autograd/pipeline_stage.h"
#include "data/data.h"
#include "train/session/session.h"

namespace lathe {

/// Runs forward and backward of one micro-batch, whose share of the step's loss `loss` computes,
/// and adds to the gradients. Backward begins with `loss_scale` if it is defined. Returns the loss,
/// [] on the device.
at::Tensor run_micro_batch(const std::function<Variable()>& loss, Compute compute,
                           StepRandom random, const at::Tensor& loss_scale = {});
/// Does the same with a session's model under its memory.recompute and train.detect_anomaly.
/// `divisor`: the number of targets in the step. Throws Exit::usage if memory.recompute concerns
/// blocks and the model has none.
at::Tensor run_micro_batch(const Session& session, const Batch& batch, double divisor,
                           StepRandom random);
/// Does the same in another precision and without a loss scale.
at::Tensor run_micro_batch(const Session& session, const Batch& batch, double divisor,
                           StepRandom random, Compute compute);

/// Runs the forward pass of a micro-batch as a stage of a pipeline. `stage` exchanges tensors with
/// the other stages. Returns the loss on the last stage, and an undefined Variable on the others.
Variable run_stage_forward(const Session& session, const Batch& batch, double divisor,
                           StepRandom random, PipelineStage& stage);
/// Runs the backward pass of such a forward pass. `root`: the last result of the forward pass on
/// this stage, and `dy`: its gradient; on the last stage, the loss and the loss scale, if any. The
/// bits are those of one backward pass through all stages if nothing else holds `dy`.
void run_stage_backward(const Session& session, const Variable& root, at::Tensor dy,
                        StepRandom random);

}  // namespace lathe
