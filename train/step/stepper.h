// Declares functions that run an optimizer step: they compute the gradients of batches and update
// the parameters. Training, benchmarks and plans use them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "data/loader.h"
#include "train/session/session.h"

namespace lathe {

/// Returns the plan that states which micro-batches of each step this process computes.
BatchPlan batch_plan(const RunConfig& config);

/// Returns a loader of this process's training micro-batches, beginning with step `step` (counted
/// from 0). `data` must outlive the loader.
inline Loader training_loader(const Session& s, const Data& data, int64_t step) {
  const BatchPlan plan = batch_plan(s.config);
  return {data,
          batch_sizes(s.config),
          static_cast<uint64_t>(s.config.train.seed),
          step * plan.count,
          s.config.data,
          s.device,
          plan};
}

/// Holds the results of a step. Times are in seconds.
struct StepResult {
  at::Tensor loss;  ///< mean over the step's targets, a scalar on the device
  double lr = 0;
  double data_wait_s = 0;      ///< time of waiting for a Loader; 0 if the step has no Loader
  double busy_s = 0;           ///< duration of the step, without exchange_wait_s
  double exchange_wait_s = 0;  ///< time of waiting for other processes' gradients or pipeline
                               ///< stages
  int64_t sent_bytes = 0;      ///< bytes of gradients, parameters and activations that were sent to
                               ///< other processes
  bool is_spike = false;       ///< whether the update was skipped as a spike (optim/spikes.h)
  int64_t targets = 0;  ///< number of targets of all processes; if 0, `loss` and all gradients are
                        ///< 0
};

/// Returns the source of the random numbers of a micro-batch. `micro_batch` is the index of the
/// micro-batch in the step, counted over all processes.
StepRandom random_of(const RunConfig& config, int64_t step, int64_t micro_batch);

/// Runs step `step` (counted from 0) of the session's config. This call is a collective. In a
/// single process, it waits for a GPU only if train.spike_sigma is set.
///
/// If a gradient is not finite, the step changes no parameter. With memory.update_in_backward,
/// however, the step may change parameters whose gradients are finite. With a loss scaler, the next
/// step runs as usual. If there is no scaler, or once the scaler has skipped too many steps in a
/// row, no later step changes a parameter.
///
/// `keep_gradients`: with dist.shard, whether to gather the complete gradients of all parameters
/// that this process's pipeline stage updates, so that they can be read after the step.
StepResult run_step(Session& session, Loader& loader, int64_t step, bool keep_gradients = false);
/// Runs a step, as run_step() above does, with micro-batches from `next`, which returns one at each
/// call. `targets` is the number of targets in the step's micro-batches of all processes.
StepResult run_step(Session& session, const std::function<Batch()>& next, int64_t step,
                    int64_t targets, bool keep_gradients = false);
/// Runs a step with micro-batches from `next` in which every token or sample has a target.
inline StepResult run_step(Session& session, const std::function<Batch()>& next, int64_t step) {
  return run_step(session, next, step, units_of_step(session.config));
}

/// Holds the numbers of a step for the log and metrics.jsonl.
struct StepStats {
  double loss = 0;
  double grad_norm = 0;   ///< norm of the unscaled gradients, before clipping; NaN after a spike
  double loss_scale = 1;  ///< the loss scale of the step
  int64_t updates = 0;    ///< number of updates of the run so far
  std::optional<ScaleState> scaler{};  ///< state of the loss scale after the step; nullopt if the
                                       ///< run has no loss scaler
  /// The share of elements that rounding left unchanged, among the elements of low-precision
  /// parameters whose update is not zero. nullopt if there are no such elements.
  std::optional<double> updates_lost{};
};
/// Returns advice for the end of an error that reports a diverged run. The advice begins with "; ".
std::string diverged_remedy(const OptimConfig& config);

/// Returns the statistics of the last step, whose result is `result`. Waits for a GPU. Throws
/// Exit::diverged if that step, or an earlier step since the previous call, diverged.
StepStats read_stats(const Session& session, const StepResult& result);

/// Returns the seconds since this process was started.
double process_age();

}  // namespace lathe
