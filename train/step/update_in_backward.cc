#include "train/step/update_in_backward.h"

#include <functional>

#include "core/error.h"
#include "core/timing.h"
#include "dist/exchange.h"
#include "train/session/passes.h"
#include "train/step/shared_step.h"
#include "train/step/stepper.h"

namespace lathe {

int passes_in_step(const RunConfig& config) {
  const OptimConfig& c = config.optim;
  return config.memory.update_in_backward && c.grad_clip > 0 && c.grad_clip_by == "norm" ? 2 : 1;
}

at::Tensor run_updating_step(Session& s, const Batch& batch, int64_t step, double divisor,
                             double lr, double& waited) {
  Optimizer& optimizer = s.optimizer;
  const BatchPlan plan = batch_plan(s.config);
  if (plan.count != 1) {
    fail(Exit::usage, "memory.update_in_backward needs one micro-batch per process, not ",
         plan.count,
         "; set train.grad_accum to the number of processes, or leave memory.update_in_backward "
         "out");
  }
  DeferRunningStatistics statistics(plan);
  StepOptions options{.step = step};
  optimizer.begin_stages();

  // Runs the forward and the backward pass, calls `use` for each gradient as soon as it is
  // complete, and returns the loss of the step.
  const auto run = [&](const std::function<void(size_t)>& use) {
    world().note(step + 1, RankPhase::forward);
    GradientExchange exchange(world(), s.params, *s.layout, GradientExchange::Result::all,
                              s.exchanged, [](size_t) {});
    exchange.use_and_free(use);
    exchange.start_with_next_backward();
    const at::Tensor loss =
        run_micro_batch(s, batch, divisor, random_of(s.config, step, plan.in_step(0)));

    world().note(step + 1, RankPhase::exchange);
    const auto begin = Clock::now();
    exchange.finish();
    const at::Tensor sum = sum_of_losses({loss}, plan);
    waited += seconds_since(begin);
    return sum;
  };

  if (passes_in_step(s.config) == 2) {
    // Mark this pass as a recomputation, so that it updates no running statistics. This pass draws
    // the same random numbers as the second pass.
    const ModeGuard guard;
    mode().is_recomputing = true;
    options.loss = run([&](size_t i) { optimizer.sum_gradient(i); });
  }
  optimizer.decide(lr, options);

  // With several processes, a gradient arrives after its exchange, and then the backward pass of
  // its block may already be over.
  const bool is_late = s.pages && world().data().size > 1;
  options.loss = run([&](size_t i) {
    optimizer.update_parameter(i, options);
    if (is_late) ParameterPages::release(s.params[i]);
  });
  optimizer.end_stages(options);
  statistics.apply(optimizer.is_skipped());
  return options.loss;
}

}  // namespace lathe
