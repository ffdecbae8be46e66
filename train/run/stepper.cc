#include "train/run/stepper.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "amp/amp.h"
#include "core/error.h"
#include "core/io/text.h"
#include "core/named_range.h"
#include "core/timing.h"
#include "dist/exchange.h"
#include "train/run/gradient_sum.h"
#include "train/run/shared_step.h"

namespace lathe {

StepRandom random_of(const RunConfig& c, int64_t step, int64_t micro_batch) {
  return {static_cast<uint64_t>(c.train.seed), static_cast<uint64_t>(step),
          micro_batch * c.train.batch_size};
}

BatchPlan batch_plan(const RunConfig& config) {
  const int64_t all = config.train.grad_accum;
  const Share share = world().share(all);
  return {.per_step = all, .first = share.first, .count = share.count};
}

StepResult run_step(Session& s, Loader& loader, int64_t step) {
  double waited = 0;
  const auto next = [&] {
    const Batch batch = loader.next();
    waited += loader.waited();
    return batch;
  };
  const int64_t accumulate = s.config.train.grad_accum;
  int64_t targets = 0;
  for (int64_t n = step * accumulate; n < (step + 1) * accumulate; ++n)
    targets += loader.targets(n).value_or(units_of_micro_batch(s.config));
  StepResult r = run_step(s, next, step, targets);
  r.data_wait_s = waited;
  return r;
}

namespace {

/// Runs the forward and backward passes of this process's micro-batches, and exchanges what they
/// made, so that gradients and running statistics are those of the whole step. Returns its loss,
/// and adds the seconds of waiting to `waited`.
at::Tensor run_micro_batches(Session& s, const std::function<Batch()>& next, int64_t step,
                             double divisor, double& waited) {
  const BatchPlan plan = batch_plan(s.config);
  GradientSum gradients(s.params);
  GradientExchange exchange(world(), s.params, static_cast<int64_t>(1e6 * s.config.dist.bucket_mb),
                            [&](size_t i) { gradients.finish(i); });
  DeferRunningStatistics statistics;
  std::vector<at::Tensor> losses;

  zero_grad(*s.model);
  for (int64_t n = 0; n < plan.count; ++n) {
    const Batch batch = [&] {
      const NamedRange data([] { return std::string("data"); });
      return next();
    }();

    gradients.begin(n);
    if (n + 1 == plan.count) exchange.start_with_next_backward();
    world().note(step, "forward and backward");
    losses.push_back(run_micro_batch(s, batch, divisor, random_of(s.config, step, plan.first + n)));
  }

  world().note(step, "exchange of gradients");
  const auto begin = Clock::now();
  exchange.finish();
  waited += seconds_since(begin);
  statistics.apply();
  return sum_of_losses(losses);
}

/// Updates the parameters with the gradients of the step.
void update(Session& s, int64_t step, const StepResult& r) {
  const NamedRange range([] { return std::string("optimizer"); });
  world().note(step, "update");
  StepOptions options{.step = step, .loss = r.loss};
  if (s.scaler) s.scaler->prepare(options);
  s.optimizer.step(r.lr, options);
  advance_fp8(s.params);
}

}  // namespace

StepResult run_step(Session& s, const std::function<Batch()>& next, int64_t step, int64_t targets) {
  const TrainConfig& c = s.config.train;
  const NamedRange range([step] { return str("step ", step); });
  const auto begin = Clock::now();
  StepResult r;
  r.lr = learning_rate(s.config.schedule, s.config.optim.lr, step, c.steps);

  // With no target at all, every sum is 0.
  const auto divisor = static_cast<double>(std::max<int64_t>(targets, 1));
  r.loss = run_micro_batches(s, next, step, divisor, r.exchange_wait_s);

  share_fp8_history(s.params);

  // Deciding on a spike synchronizes a GPU.
  if (s.spikes) {
    const double loss = r.loss.item<double>();
    r.is_spike = std::isfinite(loss) && s.spikes->is_spike(loss);
  }
  if (!r.is_spike) update(s, step, r);
  r.busy_s = seconds_since(begin) - r.exchange_wait_s;
  return r;
}

StepStats read_figures(const Session& s, const StepResult& result) {
  const StepControl c = s.optimizer.control();
  StepStats f{.loss = result.loss.item().toDouble(),
              .grad_norm = result.is_spike ? std::nan("") : c.grad_norm,
              .loss_scale = c.loss_scale,
              .updates = c.updates};
  if (s.scaler) f.scaler = s.scaler->state();
  if (c.failed_step != 0 && f.scaler) {
    fail(Exit::diverged, "step ", c.failed_step, ": ", f.scaler->skipped_in_row,
         " steps in a row had gradients that are not finite, at a loss scale of ",
         format("%.10g", f.scaler->scale),
         "; lower optim.lr, raise schedule.warmup_steps, or use amp.dtype = \"bf16\"");
  }
  if (c.failed_step != 0) {
    fail(Exit::diverged, "step ", c.failed_step, " diverged: loss ", f.loss, ", gradient norm ",
         f.grad_norm, diverged_remedy);
  }
  if (c.moved > 0) f.updates_lost = static_cast<double>(c.lost) / static_cast<double>(c.moved);
  return f;
}

double process_age() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 0; i < 20; ++i)
    fields >> field;  // field 22 of the line: start time in clock ticks since boot
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace lathe
