// Forecasts the time of a step: measures a smaller version of the config, and scales the times to
// the full config. Assumes that forward and backward times are proportional to FLOPs. Assumes that
// the optimizer's time is proportional to the FLOPs of its matrix products or, for an optimizer
// without matrix products, to the number of trained parameters. The measurement also shows how much
// memory the process needs besides its tensors.
#include "train/analysis/forecast.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "autograd/op.h"
#include "core/error.h"
#include "core/mode.h"
#include "core/timing.h"
#include "train/analysis/plan_data.h"
#include "train/session/passes.h"
#include "train/step/stepper.h"
#include "train/step/update_in_backward.h"

namespace lathe {
namespace {

constexpr int64_t max_measured_bytes = int64_t{1}
                                       << 30;  // limit for the tensors of the measured config
constexpr double max_measured_seconds = 2;     // limit for one step of the measured config

/// The measured time and memory of a config's steps.
struct Measurement {
  StepTimes times{};          ///< seconds of a step with one micro-batch
  int64_t program_bytes = 0;  ///< peak resident memory besides tensors
};

double seconds_of(const std::function<void()>& action) {
  const auto begin = Clock::now();
  action();
  return seconds_since(begin);
}

/// Returns the lower quartile of the times. Other processes can only make steps slower, so they
/// affect the lower quartile little.
double lower_quartile(std::vector<double> seconds) {
  const auto quarter = seconds.begin() + std::ssize(seconds) / 4;
  std::nth_element(seconds.begin(), quarter, seconds.end());
  return *quarter;
}

/// Turns off updates in backward, and offloading to disk, whose time depends on how much of a file
/// is cached. Neither is measured. Returns the peak bytes of the tensors of a step with both turned
/// off.
int64_t without_disk(LoadedConfig& loaded, const DryStep& dry) {
  MemoryConfig& memory = loaded.config.memory;
  if (!memory.update_in_backward && memory.offload == "none") return dry.peaks.touched_peak;
  memory.update_in_backward = false;
  memory.offload = "none";
  return dry_step(loaded).peaks.touched_peak;
}

/// Measures the time of forward passes inside run_micro_batch(), which runs both the forward and
/// the backward pass. Assumes that the forward pass ends at the last result of a forward op before
/// the first result of the backward pass.
class ForwardTimer {
 public:
  void begin() {
    is_forward_ = true;
    begin_ = last_ = Clock::now();
  }
  /// Returns the seconds of the forward pass since begin().
  double seconds() const { return seconds_; }

 private:
  bool is_forward_ = false;
  Clock::time_point begin_, last_;  // last_: time of the last result of a forward op
  double seconds_ = 0;
  ObserveOps observe_{{.on_result =
                           [this](const OpResult&) {
                             if (is_forward_) last_ = Clock::now();
                           },
                       .on_backward =
                           [this](const BackwardResult&) {
                             if (!std::exchange(is_forward_, false)) return;
                             seconds_ = std::chrono::duration<double>(last_ - begin_).count();
                           }}};
};

/// Runs a small config: one step to warm up, then two or more steps for about a second. A very slow
/// machine runs only one of these steps.
Measurement measure(LoadedConfig loaded, const DryStep& dry) {
  loaded = reduce_for_dry_run(loaded);

  // Updates in backward are measured as updates after backward. With clipping by norm, a run that
  // updates in backward needs the gradient norm before its first update, so it runs each forward
  // and backward pass twice.
  const double passes = passes_in_step(loaded.config);
  const int64_t touched = without_disk(loaded, dry);

  // Earlier peaks of the process must not count.
  reset_peak_rss();
  const RunData data = open_for_plan(loaded);
  Session s = Session::make(data);

  // If there is no data, batches of zeros have the right shapes.
  std::optional<Loader> loader;
  std::optional<DummyLoader> empty;
  const auto seed = static_cast<uint64_t>(s.config.train.seed);
  if (data.data)
    loader.emplace(*data.data, batch_sizes(s.config), seed, 0, s.config.data, s.device);
  else
    empty.emplace(s.config, nullptr, seed, s.device);

  ForwardTimer timer;
  std::vector<double> forward, rest, optimizer;
  double spent = 0;
  for (int64_t step = 0; step < 3 || (step < 50 && spent < 1.2); ++step) {
    timer.begin();
    const double gradients = seconds_of([&] {
      zero_grad(*s.model);
      const Batch batch = loader ? loader->next() : empty->next();
      run_micro_batch(s, batch, static_cast<double>(units_of_micro_batch(s.config)),
                      random_of(s.config, step, 0));
    });
    const double update = seconds_of([&] { s.optimizer.step(0, {.step = step}); });
    spent += gradients + update;

    // The first step warms up and is not counted.
    if (step > 0) {
      forward.push_back(timer.seconds());
      rest.push_back(gradients - timer.seconds());
      optimizer.push_back(update);
    }

    // On a machine that is much slower than assumed, measure fewer steps.
    if (spent > 4 * max_measured_seconds && step > 0) break;
  }

  // The dry run gives the exact bytes of tensors. The remainder of the measured peak belongs to the
  // program.
  return {{.forward = passes * lower_quartile(forward),
           .backward = passes * std::max(0.0, lower_quartile(rest)),
           .optimizer = lower_quartile(optimizer)},
          peak_rss_bytes() - touched};
}

/// A scaled-down config and its dry run.
struct ScaledConfig {
  LoadedConfig loaded;
  DryStep dry;
};

/// Returns about how long a step takes at 50 GFLOP/s, which any current machine reaches.
double rough_seconds(const DryStep& d) { return (d.micro_batch.matmul() + d.update_flops) / 50e9; }
bool is_small(const DryStep& d) {
  return d.peaks.touched_peak <= max_measured_bytes && rough_seconds(d) <= max_measured_seconds;
}

/// Returns a version of the config with the next smaller model. Returns nullopt if there is no
/// smaller version.
std::optional<ScaledConfig> scale_model_down(const ScaledConfig& from) {
  const ModelKind& kind = *find_model_kind(from.loaded.config.model.kind);
  std::optional<ScaledConfig> no_larger;
  for (auto& way : scaled_versions(kind, from.loaded.config.model.own)) {
    for (AnyConfig& own : way) {
      ScaledConfig next{from.loaded, {}};
      next.loaded.config.model.own = std::move(own);
      if (next.loaded.frozen_model) next.loaded.frozen_model = next.loaded.config.model;
      int64_t& window = next.loaded.config.data.window;
      window = std::min(window, model_context(next.loaded.config));
      if (batch_sizes(next.loaded.config).vocab_size < batch_sizes(from.loaded.config).vocab_size)
        next.loaded.config.data.dir.clear();  // token ids of the data would exceed the vocabulary

      // A model kind with a scale_down() of its own gives valid sizes. For other kinds, the smaller
      // sizes are guesses.
      if (kind.scale_down) {
        next.dry = dry_step(next.loaded);
        return next;
      }

      // A guess may break a rule that only the model's code knows; the dry run then throws. If the
      // dry run succeeds, its memory and FLOPs show whether the changed key was a size.
      try {
        next.dry = dry_step(next.loaded);
      } catch (const std::exception&) {
        continue;
      }

      const int64_t bytes = next.dry.peaks.touched_peak, bytes_before = from.dry.peaks.touched_peak;
      const double flops = next.dry.micro_batch.total(),
                   flops_before = from.dry.micro_batch.total();
      const bool is_no_larger = bytes <= bytes_before && flops <= flops_before;
      if (is_no_larger && (bytes < bytes_before || flops < flops_before)) return next;

      // If no version is smaller, continue the search from a version that is not larger.
      if (is_no_larger && !no_larger) no_larger = std::move(next);
      break;
    }
  }
  return no_larger;
}

/// Scales the config down until it can run here: first to steps of one micro-batch, then to fewer
/// sequences, then to a smaller model.
ScaledConfig scale_down(const LoadedConfig& given) {
  LoadedConfig reduced = reduce_for_dry_run(given);
  reduced.config.train.grad_accum = 1;
  // open_for_plan() finds the task's frozen model, which is scaled down with the model.
  ScaledConfig s{open_for_plan(std::move(reduced)).loaded, {}};
  s.loaded.frozen.clear();
  const auto small = [&] { return is_small(s.dry = dry_step(s.loaded)); };
  if (small()) return s;

  s.loaded.base.clear();  // the base of the adapters may be as large as the model
  auto& batch = s.loaded.config.train.batch_size;
  for (int64_t before = batch; halve(batch, 1); before = batch) {
    try {
      if (small()) return s;
    } catch (const Error& e) {
      // Batch norm may need two examples, so keep at least two.
      if (e.code() != Exit::usage) throw;
      batch = before;
      small();
      break;
    }
  }

  while (auto next = scale_model_down(s)) {
    s = std::move(*next);
    if (is_small(s.dry)) return s;
  }
  fail(Exit::usage,
       "plan: no version of this config is small enough to be measured, in 1 GiB of memory and "
       "about 2 s a step; the smallest version found takes ",
       s.dry.peaks.touched_peak >> 20, " MiB; set smaller sizes in [model]");
}

}  // namespace

StepTimes times_of_step(const RunConfig& config, const DryStep& dry, const StepTimes& measured,
                        const DryStep& small) {
  const double flops = dry.micro_batch.total() / small.micro_batch.total();
  const int64_t own = config.train.grad_accum / dry.data_ranks();
  const double micro_batches = static_cast<double>(own) + dry.bubble;
  const double work = flops * micro_batches;
  double update = small.update_flops > 0
                      ? dry.update_flops / small.update_flops
                      : static_cast<double>(dry.trained) / static_cast<double>(small.trained);
  // update_flops covers only what this process updates, but `trained` covers all processes.
  if (small.update_flops == 0) update *= dry.update_share;
  return {.forward = measured.forward * work,
          .backward = measured.backward * work,
          .optimizer = measured.optimizer * update};
}

int64_t kept_checkpoints(const RunConfig& c) {
  const CheckpointConfig& k = c.checkpoint;
  std::vector<int64_t> steps;

  // Simulate at most 100,000 steps, so that this function is fast for very long runs.
  if (k.interval > 0) {
    for (int64_t step = k.interval; step < c.train.steps && steps.size() < 100000;
         step += k.interval)
      steps.push_back(step);
  }
  steps.push_back(c.train.steps);

  // steps_to_delete() expects the newest step first.
  std::reverse(steps.begin(), steps.end());
  const size_t gone =
      steps_to_delete(steps, {.newest = k.keep, .every = k.keep_every, .best = k.keep_best}, 0)
          .size();
  // The best step is unknown. Its checkpoint is most likely one that would otherwise be deleted, so
  // count one more.
  return static_cast<int64_t>(steps.size() - gone) + (k.keep_best && gone > 0 ? 1 : 0);
}

Forecast forecast(const LoadedConfig& loaded, int ranks) {
  Forecast f;

  const RunConfig& c = loaded.config;
  const ScaledConfig small = scale_down(loaded);
  const Measurement m = measure(small.loaded, small.dry);

  f.dry = dry_step(loaded, ranks);
  f.times = times_of_step(c, f.dry, m.times, small.dry);
  f.program_bytes = m.program_bytes;
  f.is_measured = small.dry.micro_batch.total() == f.dry.micro_batch.total();
  f.kept_checkpoints = kept_checkpoints(c);
  return f;
}

}  // namespace lathe
