// Runs an optimizer step: computes the gradients of batches and updates the parameters. Used by
// training, benchmarks and plans.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "data/loader.h"
#include "train/session/session.h"

namespace lathe {

/// Returns the plan of the micro-batches of each step that this process computes.
BatchPlan batch_plan(const RunConfig& config);

/// Returns a loader of this process's training micro-batches, beginning with step `step` (from 0).
/// `data` must outlive the loader.
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

/// The results of a step. Times are in seconds.
struct StepResult {
  at::Tensor loss;  ///< mean over the step's targets, [] on the device
  double lr = 0;
  double data_wait_s = 0;      ///< waiting for a Loader; 0 without one
  double busy_s = 0;           ///< duration of the step, without exchange_wait_s
  double exchange_wait_s = 0;  ///< waiting for other processes: their gradients or pipeline stages
  int64_t sent_bytes = 0;      ///< to other processes: gradients, parameters and activations
  bool is_spike = false;       ///< whether the update was skipped as a spike (optim/spikes.h)
  int64_t targets = 0;         ///< of all processes; if 0, `loss` and all gradients are 0
};

/// Returns the source of the random numbers of a micro-batch. `micro_batch` is its index among the
/// step's micro-batches of all processes.
StepRandom random_of(const RunConfig& config, int64_t step, int64_t micro_batch);

/// Runs step `step` (from 0) of the session's config. A collective. In a single process, the call
/// does not wait for a GPU unless train.spike_sigma is set.
///
/// A step with a gradient that is not finite changes no parameter. But with
/// memory.update_in_backward, it may change parameters whose gradients are finite. With a loss
/// scaler, the next step runs as usual. Without a scaler, or once the scaler has skipped too many
/// steps in a row, no later step changes a parameter.
///
/// `keep_gradients`: with dist.shard, gather the complete gradients of all parameters that this
/// process's pipeline stage updates, so that they can be read after the step.
StepResult run_step(Session& session, Loader& loader, int64_t step, bool keep_gradients = false);
/// Does the same with micro-batches from `next`, which returns one at each call. `targets` is the
/// number of targets in the step's micro-batches of all processes.
StepResult run_step(Session& session, const std::function<Batch()>& next, int64_t step,
                    int64_t targets, bool keep_gradients = false);
/// Does the same if every token or sample of the step has a target.
inline StepResult run_step(Session& session, const std::function<Batch()>& next, int64_t step) {
  return run_step(session, next, step, units_of_step(session.config));
}

/// The numbers of a step for the log and metrics.jsonl.
struct StepStats {
  double loss = 0;
  double grad_norm = 0;   ///< of the unscaled gradients, before clipping; NaN after a spike
  double loss_scale = 1;  ///< the loss scale of the step
  int64_t updates = 0;    ///< number of updates of the run so far
  std::optional<ScaleState> scaler{};  ///< after the step
  /// Of the elements of low-precision parameters whose update is not zero, the share that rounding
  /// left unchanged; nullopt if there are no such elements.
  std::optional<double> updates_lost{};
};
/// Returns advice for the end of an error that reports a diverged run. It begins with "; ".
std::string diverged_remedy(const OptimConfig& config);

/// Returns the statistics of the last step, whose result is `result`. Waits for a GPU. Throws
/// Exit::diverged if that step, or an earlier one since the previous call, diverged.
StepStats read_stats(const Session& session, const StepResult& result);

/// Returns the seconds since this process was started.
double process_age();

}  // namespace lathe
