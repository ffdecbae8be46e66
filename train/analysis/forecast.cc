// Forward and backward times scale with FLOPs. The optimizer's time scales with the FLOPs of its
// matrix products, or with parameters where it has none. The measured run also shows the memory of
// the process beside its tensors.
#include "train/analysis/forecast.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <functional>

#include "autograd/op.h"
#include "core/device.h"
#include "core/dry_run.h"
#include "core/error.h"
#include "core/io/text.h"
#include "core/mode.h"
#include "core/timing.h"
#include "dist/group.h"
#include "dist/world.h"
#include "train/session/peak.h"
#include "train/step/shares.h"
#include "train/step/stepper.h"

namespace lathe {
namespace {

constexpr int64_t measure_bytes = int64_t{1} << 30;  // for the tensors of the measured version
constexpr double measure_seconds = 2;                // for one of its steps

/// Opens the data of a config. Token data may be missing where model.vocab_size is given.
RunData open_for_plan(LoadedConfig& loaded) {
  RunConfig& c = loaded.config;
  const bool tokens = find_model_kind(c.model.kind)->models_tokens();
  if (fs::is_directory(c.data.dir) || !tokens) return RunData::open(loaded);
  if (batch_sizes(c).vocab_size == 0) {
    fail(Exit::usage, "model.vocab_size is 0 and there is no data in ", c.data.dir,
         " to take it from; give one of them");
  }
  RunData none{nullptr, &task_of(loaded, {.task = "language"}), {}};
  resolve_frozen(loaded, *none.task, {});
  return none;
}

/// A loader whose batches have the right shapes and arbitrary values; their ring of buffers is made
/// once.
class DummyLoader {
 public:
  DummyLoader(const RunConfig& c, const Data* data, uint64_t seed, at::Device device) {
    const MemoryScope scope(Memory::data);
    const BatchSizes sizes = batch_sizes(c);
    const int64_t slots = c.data.prefetch + c.data.workers;
    if (data != nullptr) source_ = data->training(sizes, seed);
    for (int64_t i = 0; i < slots; ++i) {
      std::vector<at::Tensor> buffers;
      if (source_) {
        for (const at::Tensor& t : source_->make_buffers()) buffers.push_back(t.zero_().to(device));
      } else {
        buffers.push_back(
            at::zeros({sizes.batch_size, sizes.block_size + 1}, at::kLong).to(device));
      }
      ring_.push_back(std::move(buffers));
    }
  }

  Batch next() {
    const auto& buffers = ring_[at_++ % ring_.size()];
    if (source_) return source_->batch_of(buffers);
    const int64_t length = buffers[0].size(1) - 1;
    return {buffers[0].narrow(1, 0, length), buffers[0].narrow(1, 1, length)};
  }

 private:
  std::unique_ptr<TrainingBatches> source_;
  std::vector<std::vector<at::Tensor>> ring_;
  size_t at_ = 0;
};

/// Returns the config reduced to what the memory and the time of one step depend on.
LoadedConfig one_step(LoadedConfig loaded) {
  loaded.config.train.eval_interval = 0;
  loaded.config.train.detect_anomaly = false;  // a dry run has no values to inspect
  // Memory and time do not depend on the weights.
  loaded.source.clear();
  loaded.frozen.clear();
  loaded.config.train.device = "cpu";
  loaded.config.amp.tf32 = false;
  return loaded;
}

/// Returns the peak resident memory of this process since reset_resident_peak(), or since its start
/// where the kernel does not allow the reset.
int64_t resident_peak() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stoll(line.substr(6));
  }
  return peak_rss_bytes();
}
void reset_resident_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// What the steps of a measured config took.
struct Measurement {
  StepTimes times{};          ///< of a step of one micro-batch
  int64_t program_bytes = 0;  ///< peak resident memory beside tensors
};

double seconds_of(const std::function<void()>& action) {
  const auto begin = Clock::now();
  action();
  return seconds_since(begin);
}

/// Returns the lower quartile: other work on the machine only ever adds to the time of a step.
double lower_quartile(std::vector<double> seconds) {
  const auto quarter = seconds.begin() + std::ssize(seconds) / 4;
  std::nth_element(seconds.begin(), quarter, seconds.end());
  return *quarter;
}

/// Runs a small config: a step to warm up, then at least two, for about a second.
Measurement measure(LoadedConfig loaded, const DryStep& dry) {
  loaded = one_step(loaded);

  // Updates in backward are measured as updates after it, and the pass for the norm as another one.
  const OptimConfig& c = loaded.config.optim;
  int64_t touched = dry.peaks.touched_peak;
  double passes = 1;
  if (std::exchange(loaded.config.memory.update_in_backward, false)) {
    passes = c.grad_clip > 0 && c.grad_clip_by == "norm" ? 2 : 1;
    touched = dry_step(loaded).peaks.touched_peak;
  }
  // A plan leaves the disk alone, whose time depends on how much of the file is cached.
  if (loaded.config.memory.offload != "none") {
    loaded.config.memory.offload = "none";
    touched = dry_step(loaded).peaks.touched_peak;
  }

  // What the process had resident before must not count.
  reset_resident_peak();
  const RunData data = open_for_plan(loaded);
  Session s = Session::make(loaded, *data.task, data.sizes);

  // Without data, batches of zeros have the right shapes.
  std::optional<Loader> loader;
  std::optional<DummyLoader> empty;
  const auto seed = static_cast<uint64_t>(s.config.train.seed);
  if (data.data)
    loader.emplace(*data.data, batch_sizes(s.config), seed, 0, s.config.data, s.device);
  else
    empty.emplace(s.config, nullptr, seed, s.device);

  // A micro-batch runs forward and backward in one call. Its forward ends at the last result of an
  // op before the first result of backward.
  Clock::time_point begin;
  std::vector<double> forward, rest, optimizer;
  bool in_forward = false;
  Clock::time_point last;  // time of the last result of an op
  const ObserveOps observe({.on_result =
                                [&](const OpResult&) {
                                  if (in_forward) last = Clock::now();
                                },
                            .on_backward =
                                [&](const BackwardResult&) {
                                  if (std::exchange(in_forward, false))
                                    forward.push_back(
                                        std::chrono::duration<double>(last - begin).count());
                                }});

  double spent = 0;
  for (int64_t step = 0; step < 3 || (step < 50 && spent < 1.2); ++step) {
    in_forward = true;
    begin = last = Clock::now();
    const double gradients = seconds_of([&] {
      zero_grad(*s.model);
      const Batch batch = loader ? loader->next() : empty->next();
      run_micro_batch(s, batch, static_cast<double>(units_of_micro_batch(s.config)),
                      random_of(s.config, step, 0));
    });

    const double update = seconds_of([&] { s.optimizer.step(0, {.step = step}); });
    spent += gradients + update;

    // The first step warms up and is not counted.
    if (step == 0) forward.clear();
    if (step > 0) {
      rest.push_back(gradients - forward.back());
      optimizer.push_back(update);
    }

    // A machine that is much slower than assumed gets by with fewer steps.
    if (spent > 4 * measure_seconds && step > 0) break;
  }

  // The dry run knows the tensors exactly; the remainder of the peak belongs to the program.
  return {{passes * lower_quartile(forward), passes * std::max(0.0, lower_quartile(rest)),
           lower_quartile(optimizer)},
          resident_peak() - touched};
}

/// A scaled-down config with its dry run.
struct ScaledConfig {
  LoadedConfig loaded;
  DryStep dry;
};

/// Returns about how long a step takes at 50 GFLOP/s, which any current machine reaches.
double rough_seconds(const DryStep& d) { return (d.micro_batch.matmul() + d.update_flops) / 50e9; }
bool is_small(const DryStep& d) {
  return d.peaks.touched_peak <= measure_bytes && rough_seconds(d) <= measure_seconds;
}

/// Returns the next smaller version that the sizes of the model's kind give; nullopt where there is
/// none.
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
        next.loaded.config.data.dir.clear();  // its token ids would exceed the vocabulary

      // A scale_down of the kind itself gives valid sizes; without one the versions are guesses.
      if (kind.scale_down) {
        next.dry = dry_step(next.loaded);
        return next;
      }

      // A guess may break a rule that only the model's code knows, and then the dry run throws. One
      // that runs shows whether this number is a size.
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

      // Where no version is smaller, one that is no larger keeps the search going.
      if (is_no_larger && !no_larger) no_larger = std::move(next);
      break;
    }
  }
  return no_larger;
}

/// Scales the config down until it can run here: steps of one micro-batch, then fewer sequences,
/// then a smaller model.
ScaledConfig scale_down(const LoadedConfig& given) {
  ScaledConfig s{one_step(given), {}};
  s.loaded.config.train.grad_accum = 1;
  open_for_plan(s.loaded);  // finds the frozen model, which is scaled down with the model
  s.loaded.frozen.clear();
  const auto small = [&] { return is_small(s.dry = dry_step(s.loaded)); };
  if (small()) return s;

  s.loaded.base.clear();  // the base of adapters may be as large as the model
  auto& batch = s.loaded.config.train.batch_size;
  for (int64_t before = batch; halve(batch, 1); before = batch) {
    try {
      if (small()) return s;
    } catch (const Error& e) {
      // Batch norm may need two examples.
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
       "plan: no version of this config is small enough to be measured here; a micro-batch of one "
       "takes ",
       s.dry.peaks.touched_peak >> 20, " MiB");
}

}  // namespace

StepTimes times_of_step(const RunConfig& config, const DryStep& dry, const StepTimes& measured,
                        const DryStep& small) {
  const double flops = dry.micro_batch.total() / small.micro_batch.total();
  // The last stage of a pipeline waits until the first micro-batch has come, and the first one
  // until the last micro-batch has returned.
  const int64_t micro_batches =
      config.train.grad_accum / dry.data_ranks() + dry.replica.pipeline - 1;
  const double work = flops * static_cast<double>(micro_batches);
  double update = small.update_flops > 0
                      ? dry.update_flops / small.update_flops
                      : static_cast<double>(dry.trained) / static_cast<double>(small.trained);
  // dry.update_flops are this process's alone.
  if (small.update_flops == 0) update *= dry.update_share;
  return {measured.forward * work, measured.backward * work, measured.optimizer * update};
}

int64_t kept_checkpoints(const RunConfig& c) {
  const CheckpointConfig& k = c.checkpoint;
  std::vector<int64_t> steps;

  // The cap bounds the time for very long runs.
  if (k.interval > 0) {
    for (int64_t step = k.interval; step < c.train.steps && steps.size() < 100000;
         step += k.interval)
      steps.push_back(step);
  }
  steps.push_back(c.train.steps);

  // steps_to_delete takes them newest first.
  std::reverse(steps.begin(), steps.end());
  const size_t gone = steps_to_delete(steps, {k.keep, k.keep_every, k.keep_best}, 0).size();
  // Which step will be the best is unknown. It is most likely one that would be deleted.
  return static_cast<int64_t>(steps.size() - gone) + (k.keep_best && gone > 0 ? 1 : 0);
}

int64_t process_overhead_bytes() { return peak_rss_bytes() + (20 << 20); }

DryStep dry_step(const LoadedConfig& given, int ranks) {
  LoadedConfig loaded = one_step(given);
  const RunData data = open_for_plan(loaded);
  return dry_step(loaded, data, ranks);
}

namespace {

/// Returns the part of the trained parameters that this process updates.
double update_share_of(const Session& s) {
  const double tensor = world().tensor().size;
  if (s.stage) {
    int64_t owned = 0, all = 0;
    for (const ElementRange& range : s.stage->owned_ranges()) owned += range.size();
    for (const NamedParameter& p : s.params) all += p.parameter.numel();
    return static_cast<double>(owned) / static_cast<double>(all) / tensor;
  }
  return (s.config.dist.shard == "none" ? 1.0 : 1.0 / world().data().size) / tensor;
}

/// Returns the bytes that this process has sent for what it computes together with others of its
/// replica.
int64_t sent_within_replica() {
  int64_t bytes = 0;
  if (world().tensor().size > 1) bytes += world().layers().bytes_sent();
  if (world().pipeline().size > 1) bytes += world().stages().bytes_sent();
  return bytes;
}

/// Adds the files that memory.offload takes, and the memory that a save of such state takes.
void add_offload(DryStep& result, const Session& s) {
  if (const StateOffload* offload = s.optimizer.offload()) {
    result.scratch_bytes = offload->file_bytes();
    // A save reads one tensor of the state at a time where processes share it out.
    if (s.optimizer.is_sharded()) {
      each_state(s.optimizer, [&](const std::string&, const at::Tensor& t, const StatePart& part) {
        s.optimizer.read_state(t, part);
      });
    }
  }

  if (s.activations) result.scratch_bytes += s.activations->file_bytes();
  if (s.mapped) {
    result.scratch_bytes += s.mapped->bytes();
    result.mapped_bytes = s.pages->resident_bytes();
  }
}

/// Adds what is known of the model, its optimizer and its checkpoints.
void add_facts(DryStep& result, const Session& s) {
  result.parameters = count(parameters(*s.model));
  result.trained = count(s.params);
  for (const NamedParameter& p : s.params) result.blocks = std::max(result.blocks, p.block + 1);

  result.update_flops = s.optimizer.update_flops();
  result.formula_flops = flops_per_unit(s) * static_cast<double>(units_of_micro_batch(s.config));

  result.checkpoint_bytes =
      checkpoint_bytes(s.params, s.optimizer, save_dtype(s.config.checkpoint));
  // A background save writes a copy, since training continues meanwhile.
  result.held_bytes = s.config.checkpoint.async_save ? result.checkpoint_bytes : 0;

  result.has_copies = std::any_of(s.params.begin(), s.params.end(), [](const auto& p) {
    return p.parameter.leaf().precision.low.defined();
  });
}

/// Runs the dry steps of a process of one stage.
DryStep dry_step_of_stage(const LoadedConfig& given, const RunData& data, int ranks, int stage) {
  const LoadedConfig loaded = one_step(given);
  std::optional<DryWorld> others;
  const GridSizes sizes = replica_of(loaded.config, ranks);
  const int data_ranks = ranks / sizes.replica();
  if (ranks > 1) others.emplace(ranks, sizes, stage);

  const DryRun dry;
  Session s = Session::make(loaded, *data.task, data.sizes);
  DummyLoader batches(s.config, data.data.get(), static_cast<uint64_t>(s.config.train.seed),
                      s.device);

  s.share_out();

  DryStep result;
  result.made = memory_stats();
  result.unit = data.task->unit();

  // FLOPs are those of one step, and the peaks those of both. The sums of gradients that a step
  // keeps grow with the logarithm of its micro-batches, so more than so many make no difference
  // that counts.
  constexpr int64_t most = 64;
  const int64_t all = s.config.train.grad_accum, own = std::min(all / data_ranks, most);
  FlopCount flops;
  int64_t sent_in_replica = 0;
  for (int64_t step = 0; step < 2; ++step) {
    s.config.train.grad_accum = data_ranks * (step == 0 ? 1 : own);
    flops = {};
    const int64_t before = sent_within_replica();
    const CountFlops counting(flops);
    run_step(s, [&] { return batches.next(); }, step);
    sent_in_replica = sent_within_replica() - before;
  }

  add_offload(result, s);

  const auto n = static_cast<double>(own);
  // The counts are those of all micro-batches of the step.
  for (Flops* f : {&flops.forward, &flops.backward}) f->matmul /= n, f->other /= n;

  result.micro_batch = flops;
  result.ranks = ranks;
  result.replica = sizes;
  result.stage = stage;
  result.update_share = update_share_of(s);
  result.sent_bytes =
      bytes_sent_by_first(*s.layout, s.local_params(), s.config.dist.shard, all / data_ranks) +
      sent_in_replica * (all / data_ranks) / own;
  result.peaks = memory_stats();
  add_facts(result, s);
  return result;
}

}  // namespace

DryStep dry_step(const LoadedConfig& given, const RunData& data, int ranks) {
  const GridSizes sizes = replica_of(given.config, ranks);
  DryStep result = dry_step_of_stage(given, data, ranks, 0);
  FlopCount whole = result.micro_batch;
  for (int stage = 1; stage < sizes.pipeline; ++stage) {
    DryStep other = dry_step_of_stage(given, data, ranks, stage);
    whole.forward += other.micro_batch.forward;
    whole.backward += other.micro_batch.backward;
    if (other.resident() > result.resident()) std::swap(other, result);
    if (other.micro_batch.total() > result.micro_batch.total())
      result.micro_batch = other.micro_batch;
    result.update_share = std::max(result.update_share, other.update_share);
    result.update_flops = std::max(result.update_flops, other.update_flops);
    result.sent_bytes = std::max(result.sent_bytes, other.sent_bytes);
  }

  for (Flops* f : {&whole.forward, &whole.backward})
    f->matmul *= sizes.tensor, f->other *= sizes.tensor;
  result.whole_micro_batch = whole;
  return result;
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
