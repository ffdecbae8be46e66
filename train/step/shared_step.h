// Exchanges values other than gradients between the processes of a run in a step: running
// statistics, losses and fp8 maxima. If the run has one process, these functions exchange nothing.
#pragma once

#include <vector>

#include "core/running_statistic.h"
#include "data/batch_plan.h"
#include "nn/module.h"

namespace lathe {

/// Lets layers with running statistics, such as batch norm, record the statistics of their batches
/// until destroyed. apply() then updates the running statistics in the order of the step's
/// micro-batches, including the micro-batches of other processes. Without a call of apply(), the
/// running statistics stay as they are.
class DeferRunningStatistics : public ModeGuard {
 public:
  /// `plan`: which of the step's micro-batches this process computes.
  explicit DeferRunningStatistics(const BatchPlan& plan);
  /// Updates the running statistics, unless `skipped` is 1. Call this function after all
  /// micro-batches of this process and after the step's decision. `skipped`:
  /// Optimizer::is_skipped(); all processes must pass the same value. Does not wait for a GPU. This
  /// call is a collective.
  void apply(const at::Tensor& skipped);

 private:
  void apply_recorded();

  BatchPlan plan_;
  std::vector<RunningStatistic> recorded_;
};

/// Returns the sum of the losses of all micro-batches, in the order of core/tree_sum.h, or one
/// after another if plan.in_sequence is true. `losses`: the losses of this process's micro-batches,
/// each float32 []. This call is a collective.
at::Tensor sum_of_losses(const std::vector<at::Tensor>& losses, const BatchPlan& plan);

/// Replaces the largest values (amax) of fp8 layers in this step by the maxima over all processes.
/// This call is a collective.
void share_fp8_history(const std::vector<NamedParameter>& parameters);

}  // namespace lathe
