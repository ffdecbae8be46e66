// Declares functions that run the micro-batches of a step on one stage of a pipeline
// (dist.pipeline). In forward passes, a stage receives the activations of the previous stage, runs
// its blocks, and sends the result to the next stage. In backward passes, gradients are sent in the
// other direction.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/loader.h"
#include "train/session/session.h"

namespace lathe {

/// Describes a pass of a micro-batch through a part of a stage. Micro-batches and parts are counted
/// from 0.
struct StagePass {
  int64_t micro_batch = 0;
  bool is_backward = false;
  int part = 0;

  bool operator==(const StagePass&) const = default;
};

/// Returns the passes of a stage in their order: forward and backward passes alternate ("1F1B",
/// Narayanan et al. 2019, "PipeDream"). With one part per stage, stage s of S keeps activations of
/// at most S - s micro-batches. With several parts, a group of S micro-batches passes through all
/// parts before the next group begins (the interleaved schedule, Narayanan et al. 2021, section
/// 2.2.2). S must then divide `micro_batches`. The forward passes of a part run in the order of
/// micro-batches, and so do the part's backward passes.
std::vector<StagePass> stage_schedule(int stage, int stages, int parts, int64_t micro_batches);

/// Holds the parameters of run_stage().
struct StageStep {
  const std::function<Batch()>& next;  ///< each call returns the next micro-batch
  int64_t step = 0;                    ///< number of the step, counted from 0
  double divisor = 1;                  ///< the number of targets in the step
  BatchPlan plan;
  /// Function that is called for the backward pass of micro-batch `n` through a part. It must call
  /// `backward` once.
  std::function<void(int64_t n, int part, const std::function<void()>& backward)> around_backward;
};

/// Runs the passes of a step's micro-batches on this stage, and accumulates the gradients of the
/// stage's parameters. Returns the losses, which are the same on all stages. Increases `waited` by
/// the seconds for which this stage waited for other stages. Throws Exit::usage if the model does
/// not run its blocks exactly once in each forward pass.
std::vector<at::Tensor> run_stage(Session& session, const StageStep& step, double& waited);

}  // namespace lathe
