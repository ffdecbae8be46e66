#include "train/loop/reporter.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "core/device.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "dist/world.h"
#include "train/loop/replay.h"

namespace lathe {
namespace {

/// A rank is reported as slow if it takes more than slow_factor times as long as the median rank in
/// slow_steps logged steps in a row.
constexpr double slow_factor = 1.3;
constexpr int slow_steps = 5;

int64_t memory_peak(const Session& session) {
  return session.device.is_cuda() ? cuda_api().memory_peak() : memory_stats().total_peak;
}

}  // namespace

StepReporter::StepReporter(const Session& session, const Data& data, const fs::path& run,
                           RunState& state, MetricsSinks& metrics)
    : session_(session),
      data_(data),
      run_(run),
      state_(state),
      metrics_(metrics),
      units_per_step_(static_cast<double>(units_of_step(session.config))),
      flops_per_unit_(flops_per_unit(session)),
      mfu_meter_(session.device_name, static_cast<int>(session.config.train.threads),
                 session.compute.dtype),
      line_(session.config.train.steps, state.step, units_per_step_, session.task.unit()),
      last_report_step_(state.step) {}

void StepReporter::report(const StepResult& result, bool write, std::vector<LayerStats> layers) {
  const StepStats stats = read_stats(result);

  // A loss scaler skips steps with non-finite values, but the last step of a run must be finite.
  if (state_.step == session_.config.train.steps && !std::isfinite(stats.loss))
    end_diverged_run(stats.loss);
  auto ranks = write ? gather_ranks(result) : std::vector<RankStats>();
  if (!world().is_writer()) return;
  warn_of_slow_rank(ranks);

  const double seconds =
      seconds_since(last_report_time_) / static_cast<double>(state_.step - last_report_step_);
  last_report_step_ = state_.step;
  restart_step_timer();

  // Copy the counters to the state, so that a checkpoint of this step has them.
  log_skipped_updates(stats);
  state_.updates = stats.updates;
  state_.scaler = stats.scaler;
  if (session_.spikes) state_.spikes = session_.spikes->state();
  if (result.is_spike) save_spike_batch(stats);
  if (result.targets == 0 && !std::exchange(has_warned_of_no_targets_, true)) {
    log_warn("step ", state_.step,
             " has no target to learn from: its loss is 0, and its update applies only momentum "
             "and weight decay; such steps are rarer with a larger train.batch_size, "
             "train.grad_accum or data.window");
  }

  StepMetrics m{
      .step = state_.step,
      .updates = state_.updates,
      .loss = stats.loss,
      .lr = result.lr,
      .grad_norm = stats.grad_norm,
      .units = state_.tokens,
      .units_per_sec = units_per_step_ / seconds,
      .step_ms = 1e3 * seconds,
      .mfu = mfu_meter_.mfu(flops_per_unit_ * units_per_step_ / (seconds * world().size())),
      .data_wait_ms = 1e3 * result.data_wait_s,
      .memory_bytes = memory_peak(session_),
      .loss_scale = stats.loss_scale,
      .skipped = stats.scaler ? stats.scaler->skipped : 0,
      .spikes = state_.spikes ? state_.spikes->skipped : 0,
      .updates_lost = stats.updates_lost,
      .ranks = std::move(ranks),
      .layers = std::move(layers)};
  if (write) {
    add_memory_peaks(m);
    metrics_.add(m);
  }
  line_.show(m, seconds, write);
}

void StepReporter::report_once(const StepResult& result) {
  if (last_report_step_ != state_.step) report(result, false);
}

void StepReporter::restart_step_timer() {
  // On a GPU, steps may have run whose results are not reported yet. Their next report covers the
  // time since the last report, so the timer must not restart before it.
  if (last_report_step_ == state_.step) last_report_time_ = Clock::now();
}

void StepReporter::end_diverged_run(double loss) const {
  try {
    end_diverged(session_.config.optim, state_.step, "loss", loss);
  } catch (const Error& e) {
    // The scaler has skipped the step, so the session still has the state before the step.
    keep_failed_step(e, state_.step);
  }
}

StepStats StepReporter::read_stats(const StepResult& result) const {
  try {
    return lathe::read_stats(session_, result);
  } catch (const Error& e) {
    if (e.code() != Exit::diverged) throw;
    keep_failed_step(e, session_.optimizer.control().failed_step);
  }
}

void StepReporter::keep_failed_step(const Error& e, int64_t failed) const {
  // If parameters are updated in the backward pass, the failed step has already changed some of
  // them, so the step can't be replayed.
  if (session_.config.memory.update_in_backward) throw e;

  bool is_written = false;
  try {
    wait_for_saves();
  } catch (const Error& why) {
    if (why.code() == Exit::peer_lost) throw;
    log_warn("the last checkpoint was not saved: ", why.what());
  }
  try {
    if (divides_state(session_.optimizer) || world().is_writer())
      write_replay_bundle(run_, state_, session_, data_, failed - 1);
    is_written = true;
  } catch (const Error& why) {
    if (why.code() == Exit::peer_lost) throw;
    log_warn("cannot save the step for `lathe replay`: ", why.what());
  }
  // Wait for all ranks to finish writing, since a launcher ends all ranks soon after one has
  // failed.
  world().wait_for_all();
  if (!is_written || !world().is_writer()) throw e;
  fail(Exit::diverged, e.what(), "; `lathe replay ", run_.string(),
       "` reruns the step and names the first op with a non-finite result or gradient");
}

void StepReporter::save_spike_batch(const StepStats& stats) const {
  const fs::path kept = run_ / "spikes" / (checkpoint_name(state_.step) + ".safetensors");
  write_batches(kept, batches_of_step(session_, data_, state_.step - 1));
  log_warn("step ", state_.step, ": the loss ", format("%.4f", stats.loss),
           " is a spike above the recent mean ", format("%.4f", session_.spikes->state().mean),
           " (standard deviation ", format("%.4f", std::sqrt(session_.spikes->state().variance)),
           "); the update was skipped, and the batch was saved to ", kept.string());
}

void StepReporter::log_skipped_updates(const StepStats& stats) const {
  if (!stats.scaler || !state_.scaler || stats.scaler->skipped == state_.scaler->skipped) return;
  log_info("step ", state_.step, ": ", stats.scaler->skipped - state_.scaler->skipped,
           " update(s) skipped because gradients were not finite; the loss scale is now ",
           format("%.10g", stats.scaler->scale));
}

/// Returns the times, peak memory and sent bytes of each process in the step; empty for a single
/// process. This call is a collective.
std::vector<RankStats> StepReporter::gather_ranks(const StepResult& result) const {
  if (world().size() == 1) return {};
  const at::Tensor mine = at::tensor(
      {1e3 * result.busy_s, 1e3 * result.exchange_wait_s,
       static_cast<double>(memory_peak(session_)), static_cast<double>(result.sent_bytes)},
      at::kDouble);
  const at::Tensor all = world().gather(mine.unsqueeze(0));

  std::vector<RankStats> ranks;
  for (int r = 0; r < world().size(); ++r) {
    const double* of_rank = all.const_data_ptr<double>() + static_cast<ptrdiff_t>(4) * r;
    ranks.push_back({.busy_ms = of_rank[0],
                     .wait_ms = of_rank[1],
                     .memory_bytes = static_cast<int64_t>(of_rank[2]),
                     .sent_bytes = static_cast<int64_t>(of_rank[3])});
  }
  return ranks;
}

/// Warns about each slow rank once, and warns again only if the rank was fast since the last
/// warning.
void StepReporter::warn_of_slow_rank(const std::vector<RankStats>& ranks) {
  if (ranks.empty()) return;
  slow_in_row_.resize(ranks.size());
  std::vector<double> sorted;
  for (const RankStats& r : ranks) sorted.push_back(r.busy_ms);
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[(sorted.size() - 1) / 2];

  for (size_t r = 0; r < ranks.size(); ++r) {
    slow_in_row_[r] = ranks[r].busy_ms > slow_factor * median ? slow_in_row_[r] + 1 : 0;
    if (slow_in_row_[r] != slow_steps) continue;
    log_warn("rank ", r, " is slow and makes the other ranks wait: it worked ",
             format("%.0f", ranks[r].busy_ms), " ms in step ", state_.step,
             "; the median of all ranks is ", format("%.0f", median), " ms");
  }
}

/// Adds the peaks of all memory categories if any peak has changed since the peaks were last
/// written. Does nothing on a GPU.
void StepReporter::add_memory_peaks(StepMetrics& m) {
  if (session_.device.is_cuda()) return;
  const auto peak = memory_stats().peak;
  if (peak == last_reported_peaks_) return;

  last_reported_peaks_ = peak;
  for (size_t i = 0; i < peak.size(); ++i) {
    if (peak[i] > 0) m.memory.emplace_back(memory_names[i], peak[i]);
  }
}

void end_diverged(const OptimConfig& config, int64_t step, const char* what, double value) {
  fail(Exit::diverged, "step ", step, ", the last one, diverged: ", what, " ", value,
       diverged_remedy(config));
}

}  // namespace lathe
