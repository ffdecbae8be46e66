// One optimizer step: batches in, updated parameters out. Shared by training, benchmarks and plans.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "data/loader.h"
#include "train/session/session.h"

namespace lathe {

/// Returns the micro-batches that this process computes.
BatchPlan batch_plan(const RunConfig& config);

/// Opens the micro-batches that this process trains on from step `step` on.
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

struct StepResult {
  at::Tensor loss;  ///< mean over the step's targets, [] on the device
  double lr = 0;
  double data_wait_s = 0;
  double busy_s = 0;           ///< of the step, without exchange_wait_s
  double exchange_wait_s = 0;  ///< waiting for the other processes' gradients
  int64_t sent_bytes = 0;      ///< to other processes, of gradients and parameters
  bool is_spike = false;       ///< its update was left out: see optim/spikes.h
  int64_t targets = 0;         ///< of all processes; with none, `loss` and all gradients are 0
};

/// Returns the source of the random numbers of a micro-batch of a step.
StepRandom random_of(const RunConfig& config, int64_t step, int64_t micro_batch);

/// Runs step `step` (from 0) of the session's config. Does not wait for a GPU. A step with a
/// gradient that is not finite changes no parameter. With a scaler the step is skipped. Without
/// one, or once the scaler has skipped too many steps in a row, no later step changes a parameter
/// either.
///
/// `keep_gradients`: with dist.shard, gather the gradients of all parameters, so that they can be
/// read after the step.
StepResult run_step(Session& session, Loader& loader, int64_t step, bool keep_gradients = false);
/// Does the same on the micro-batches that `next` returns, which have `targets` targets together.
StepResult run_step(Session& session, const std::function<Batch()>& next, int64_t step,
                    int64_t targets, bool keep_gradients = false);
/// Does the same with a target at each position.
inline StepResult run_step(Session& session, const std::function<Batch()>& next, int64_t step) {
  return run_step(session, next, step, units_of_step(session.config));
}

/// The numbers of a step for the log and metrics.jsonl.
struct StepStats {
  double loss = 0;
  double grad_norm =
      0;  ///< of the unscaled gradients, before clipping; NaN where the update was left out
  double loss_scale = 1;  ///< that the step used
  int64_t updates = 0;
  std::optional<ScaleState> scaler{};  ///< after the step
  std::optional<double>
      updates_lost{};  ///< low-precision parameters: share of elements whose update rounding undid
};
/// Returns the advice at the end of the errors of a diverged run.
std::string diverged_remedy(const OptimConfig& config);

/// Returns the numbers of the last step, and waits for a GPU. Throws Exit::diverged if that step,
/// or one since the last call, ended the run.
StepStats read_stats(const Session& session, const StepResult& result);

/// Returns the seconds since this process was started.
double process_age();

}  // namespace lathe
