#include "train/step/stepper.h"

#include <time.h>
#include <unistd.h>

#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "amp/amp.h"
#include "core/error.h"
#include "core/io/text.h"
#include "core/named_range.h"
#include "core/timing.h"
#include "core/tree_sum.h"
#include "dist/collectives.h"
#include "dist/exchange.h"
#include "dist/sequence_ranks.h"
#include "dist/tensor_ranks.h"
#include "train/session/passes.h"
#include "train/step/gradient_sum.h"
#include "train/step/pipeline_step.h"
#include "train/step/shared_step.h"
#include "train/step/update_in_backward.h"

namespace lathe {

StepRandom random_of(const RunConfig& c, int64_t step, int64_t micro_batch) {
  return {.seed = static_cast<uint64_t>(c.train.seed),
          .step = static_cast<uint64_t>(step),
          .first_sample = micro_batch * c.train.batch_size};
}

BatchPlan batch_plan(const RunConfig& config) {
  const int64_t all = config.train.grad_accum;
  const Share share = world().share(all);
  // If gradients are exchanged after every micro-batch, they are first added up over the ranks. In
  // this case, ranks take turns, so that the micro-batches that are added up together are neighbors
  // in the order of core/tree_sum.h.
  if (exchanges_every_micro_batch(world(), config.dist.shard))
    return {.per_step = all,
            .first = world().data().rank,
            .count = share.count,
            .stride = world().data().size};
  return {.per_step = all,
          .first = share.first,
          .count = share.count,
          .in_sequence = config.train.sum_order == "sequence"};
}

StepResult run_step(Session& s, Loader& loader, int64_t step, bool keep_gradients) {
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
  StepResult r = run_step(s, next, step, targets, keep_gradients);
  r.data_wait_s = waited;
  return r;
}

namespace {

/// Collects the gradients of a step while its micro-batches run. The sums are stored as the
/// parameters' gradients. With dist.shard, they are stored in tensors of the elements that this
/// process owns.
class StepGradients {
 public:
  StepGradients(Session& s, const BatchPlan& plan)
      : s_(s),
        plan_(plan),
        each_(plan.stride > 1),
        sum_(s.local_params(), plan.in_sequence),
        own_(s.divides_state() ? s.local_params().size() : 0) {}

  const BatchPlan& plan() const { return plan_; }

  /// Prepares for the backward pass of the n-th micro-batch of this process. A stage of a pipeline
  /// has one backward pass for each of its parts, and the backward pass of part 0 comes last.
  void begin(int64_t n, int part = 0) {
    const auto runs_now = [&](size_t i) { return !s_.stage || s_.stage->part_of_local(i) == part; };
    // If gradients are exchanged after every micro-batch, the parameters hold no gradients of
    // earlier micro-batches.
    for (size_t i = 0; !each_ && i < s_.local_params().size(); ++i) {
      if (runs_now(i)) sum_.begin(n, i);
    }
    if (!each_ && (n + 1 < plan_.count || part > 0)) return;

    using Result = GradientExchange::Result;
    exchange_.emplace(world(), s_.local_params(), *s_.layout,
                      own_.empty() ? Result::all : Result::own, s_.exchanged, [this](size_t i) {
                        if (!each_) sum_.finish(i);
                      });
    exchange_->start_with_next_backward();
    for (size_t i = 0; s_.stage && i < s_.local_params().size(); ++i) {
      if (!runs_now(i)) exchange_->complete(i);
    }
  }

  /// Ends the backward pass that begin() prepared for. Returns the seconds for which this call
  /// waited for other processes.
  double end() {
    if (!exchange_) return 0;
    const auto begin = Clock::now();
    exchange_->finish();
    const std::vector<at::Tensor> got = exchange_->take_own();
    exchange_.reset();

    for (size_t i = 0; i < got.size(); ++i) own_[i].add(got[i], add_gradients);
    return seconds_since(begin);
  }

  /// Returns the sums of the elements that this process owns, for StepOptions::own_gradients.
  /// Returns an empty vector if all sums are stored as the parameters' gradients.
  std::vector<at::Tensor> take_own() {
    std::vector<at::Tensor> sums;
    for (TreeSum<at::Tensor>& own : own_) sums.push_back(own.finish(add_gradients));
    if (divides_sequence(s_.config.dist)) {
      sum_block_gradients(s_.local_params(), [&](size_t i) {
        return own_.empty() ? s_.local_params()[i].parameter.grad() : sums[i];
      });
    }
    return s_.stage ? s_.stage->sum_gradients(std::move(sums)) : sums;
  }

 private:
  Session& s_;
  BatchPlan plan_;
  bool each_;  // whether gradients are exchanged after every micro-batch
  GradientSum sum_;
  std::optional<GradientExchange> exchange_;
  std::vector<TreeSum<at::Tensor>> own_;
};

/// Runs the forward and backward passes of this process's micro-batches, and exchanges their
/// results, so that gradients cover the complete step. Returns the loss of the step. Adds the
/// seconds for which this process waited for other processes to `waited`.
at::Tensor run_micro_batches(Session& s, const std::function<Batch()>& next, int64_t step,
                             double divisor, StepGradients& gradients, double& waited) {
  const BatchPlan& plan = gradients.plan();
  std::vector<at::Tensor> losses;

  zero_grad(*s.model);
  if (s.stage) {
    const auto around_backward = [&](int64_t n, int part, const std::function<void()>& backward) {
      gradients.begin(n, part);
      backward();
      if (s.shards) s.shards->end_step();
      waited += gradients.end();
    };
    const StageStep passes{.next = next,
                           .step = step,
                           .divisor = divisor,
                           .plan = plan,
                           .around_backward = around_backward};
    return sum_of_losses(run_stage(s, passes, waited), plan);
  }

  for (int64_t n = 0; n < plan.count; ++n) {
    const Batch batch = [&] {
      const NamedRange data([] { return std::string("data"); });
      return next();
    }();

    world().note(step + 1, RankPhase::forward);
    gradients.begin(n);
    losses.push_back(
        run_micro_batch(s, batch, divisor, random_of(s.config, step, plan.in_step(n))));

    if (s.shards) s.shards->end_step();

    world().note(step + 1, RankPhase::exchange);
    waited += gradients.end();
  }

  return sum_of_losses(losses, plan);
}

/// Gathers the gradient sums of all data ranks' elements, and sets them as the gradients of the
/// parameters that this stage updates. `own` is StepOptions::own_gradients.
void keep_all_gradients(Session& s, const std::vector<at::Tensor>& own) {
  const std::span<const NamedParameter> params = s.local_params();
  const auto own_of = [&](size_t i) { return own[s.index_of_local(i)]; };
  const auto sums = [&](size_t i) {
    if (own_of(i).defined()) return own_of(i);
    const at::ScalarType dtype = params[i].parameter.leaf().precision.grad_dtype;
    return at::zeros({s.layout->range(i, world().data().rank).size()},
                     at::TensorOptions().dtype(dtype).device(s.device));
  };
  const auto put = [&](size_t i, const at::Tensor& all) {
    const Variable& p = params[i].parameter;
    if (own_of(i).defined()) p.leaf().grad = all.clone().view(p.data().sizes());
  };
  for (const Bucket& bucket : s.layout->buckets()) {
    if (bucket.owner == world().pipeline().rank)
      gather_bucket(world(), world().gradients(), *s.layout, bucket, sums, put);
  }
}

/// Exchanges the updated parameters, so that each process gets the new values of all parameters
/// that it keeps in full.
void publish_update(Session& s) {
  if (s.shards) {
    s.shards->publish_update();
  } else if (s.divides_state()) {
    gather_parameters(world(), *s.layout, s.local_params());
    refresh_working_copies(s.local_params());
  }
  if (s.stage) s.stage->publish_update();
}

/// Updates the parameters with the gradients of the step. `own` is StepOptions::own_gradients.
void update(Session& s, int64_t step, const StepResult& r, const std::vector<at::Tensor>& own) {
  const NamedRange range([] { return std::string("optimizer"); });
  world().note(step + 1, RankPhase::update);
  StepOptions options{.step = step, .loss = r.loss, .own_gradients = own};
  // This sum is exact in any order: its terms are integers, or all terms but one are 0.
  options.sum_over_processes = [&](at::Tensor& t) {
    if (s.divides_state()) t.copy_(world().gather_over_data(t.unsqueeze(0)).sum(0));
    if (s.stage) t.copy_(world().gather_over_pipeline(t.unsqueeze(0)).sum(0));
  };
  if (world().tensor().size > 1) {
    options.sum_over_tensor_ranks = [](at::Tensor& t) {
      t.copy_(sum_over_ranks(world().gather_over_tensor(t.unsqueeze(0))));
    };
    options.join_tensor_ranks = join_over_tensor_ranks;
  }
  std::vector<at::Tensor> own_parameters;
  if (s.shards) {
    own_parameters.resize(s.params.size());
    const std::span<const at::Tensor> local = s.shards->own();
    for (size_t i = 0; i < local.size(); ++i) own_parameters[s.index_of_local(i)] = local[i];
    options.own_parameters = own_parameters;
  }
  if (s.scaler) s.scaler->prepare(options);
  if (s.before_update) s.before_update();
  s.optimizer.step(r.lr, options);

  // On a GPU, always exchange the parameters, even if they did not change, since reading the
  // decision to skip an update would synchronize the GPU.
  const bool is_updated = s.device.is_cuda() || s.optimizer.control().skip == 0;
  if (is_updated) publish_update(s);
  // `lathe replay` repeats a failed step with the same scales, so the scales must not advance after
  // a failed step. On a GPU, they always advance, since reading the failed step would synchronize
  // the GPU.
  const bool has_failed = !s.device.is_cuda() && s.optimizer.control().failed_step != 0;
  if (!has_failed) advance_fp8(s.params);
}

}  // namespace

StepResult run_step(Session& s, const std::function<Batch()>& next, int64_t step, int64_t targets,
                    bool keep_gradients) {
  const TrainConfig& c = s.config.train;
  const NamedRange range([step] { return str("step ", step); });
  const auto begin = Clock::now();
  StepResult r;
  const int64_t sent_before = world().bytes_sent();
  r.lr = learning_rate(s.config.schedule, s.config.optim.lr, step, c.steps);

  r.targets = targets;
  // If the step has no targets, every sum is 0, so 1 serves as the divisor.
  const auto divisor = static_cast<double>(std::max<int64_t>(targets, 1));
  if (s.config.memory.update_in_backward) {
    if (s.before_update) s.before_update();
    zero_grad(*s.model);
    r.loss = run_updating_step(s, next(), step, divisor, r.lr, r.exchange_wait_s);
    share_fp8_history(s.params);
    advance_fp8(s.params);
    r.sent_bytes = world().bytes_sent() - sent_before;
    r.busy_s = seconds_since(begin) - r.exchange_wait_s;
    return r;
  }

  StepGradients gradients(s, batch_plan(s.config));
  DeferRunningStatistics statistics(gradients.plan());
  r.loss = run_micro_batches(s, next, step, divisor, gradients, r.exchange_wait_s);
  const std::vector<at::Tensor> own = gradients.take_own();
  if (keep_gradients && s.divides_state()) keep_all_gradients(s, own);

  share_fp8_history(s.params);

  // Deciding on a spike synchronizes a GPU.
  if (s.spikes && targets > 0) {
    const double loss = r.loss.item<double>();
    r.is_spike = std::isfinite(loss) && s.spikes->is_spike(loss);
  }
  if (r.is_spike) {
    s.optimizer.record_skipped_update(s.scaler ? s.scaler->state().scale : 1);
    advance_fp8(s.params);
  } else {
    update(s, step, r, own);
    statistics.apply(s.optimizer.is_skipped());
  }
  r.sent_bytes = world().bytes_sent() - sent_before;
  r.busy_s = seconds_since(begin) - r.exchange_wait_s;
  return r;
}

std::string diverged_remedy(const OptimConfig& config) {
  return str(config.grad_clip > 0 ? "; lower optim.lr or optim.grad_clip"
                                  : "; lower optim.lr, set optim.grad_clip",
             ", or raise schedule.warmup_steps or optim.eps");
}

StepStats read_stats(const Session& s, const StepResult& result) {
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
    // Print a NaN without its sign, which has no meaning.
    const auto shown = [](double x) { return std::isnan(x) ? std::string("nan") : str(x); };
    fail(Exit::diverged, "step ", c.failed_step, " diverged: loss ", shown(f.loss),
         ", gradient norm ", shown(f.grad_norm), diverged_remedy(s.config.optim));
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
