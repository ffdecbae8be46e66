// Declares StepReporter, which reads a step's results, times the step, and writes its line to the
// console and to metrics.jsonl.
#pragma once

#include <functional>
#include <vector>

#include "core/memory.h"
#include "core/timing.h"
#include "train/loop/console.h"
#include "train/session/peak.h"
#include "train/step/stepper.h"
#include "train/store/sinks.h"

namespace lathe {

/// Reports the steps of a run, and keeps the counters in the run's state up to date.
class StepReporter {
 public:
  /// All arguments must outlive this object. `state` is the state of the run after `state.step`
  /// steps.
  StepReporter(const Session& session, const Data& data, const fs::path& run, RunState& state,
               MetricsSinks& metrics);

  /// Reads the results of step `state.step` and shows them. If `write` is true, also adds the
  /// results and `layers` to the metrics. Updates the counters of `state`. Synchronizes a GPU.
  /// Calls keep_failed_step() if a step failed or if the loss of the run's last step is not finite.
  void report(const StepResult& result, bool write, std::vector<LayerStats> layers = {});
  /// Calls report(result, false) unless the step was already reported.
  void report_once(const StepResult& result);
  /// Ends a run because step `failed`, counted from 1, failed with error `e`. Writes a replay
  /// bundle of the step to the run folder, then throws `e` again with a hint to run `lathe replay`.
  /// With memory.update_in_backward, only throws `e`, since the step may have updated some
  /// parameters and can't be replayed. This call is a collective.
  [[noreturn]] void keep_failed_step(const Error& e, int64_t failed) const;
  /// Excludes the time since the last report, such as the time of an evaluation or a save, from the
  /// time of the next step.
  void restart_step_timer();

  /// Waits for this rank's background save; may throw the error of the save. keep_failed_step()
  /// calls it first, since a save and a replay bundle use the same process group.
  std::function<void()> wait_for_saves = [] {};

  /// Returns the meter that computes MFU.
  MfuMeter& mfu_meter() { return mfu_meter_; }

 private:
  StepStats read_stats(const StepResult& result) const;
  /// Ends a run because the loss of its last step is not finite, as keep_failed_step() does.
  [[noreturn]] void end_diverged_run(double loss) const;
  void save_spike_batch(const StepStats& stats) const;
  void log_skipped_updates(const StepStats& stats) const;
  void add_memory_peaks(StepMetrics& m);
  std::vector<RankStats> gather_ranks(const StepResult& result) const;
  void warn_of_slow_rank(const std::vector<RankStats>& ranks);

  const Session& session_;
  const Data& data_;
  const fs::path& run_;
  RunState& state_;
  MetricsSinks& metrics_;
  double units_per_step_, flops_per_unit_;
  MfuMeter mfu_meter_;
  StepLine line_;
  decltype(MemoryStats::peak) last_reported_peaks_{};  // the peaks that were last written to
                                                       // metrics.jsonl
  int64_t last_report_step_;
  bool has_warned_of_no_targets_ = false;
  std::vector<int> slow_in_row_;  // for each rank, the number of consecutive slow logged steps
  Clock::time_point last_report_time_ = Clock::now();
};

/// Throws Exit::diverged because `value` is not finite after `step`, the last step of a run. `what`
/// names the value, such as "validation loss".
[[noreturn]] void end_diverged(const OptimConfig& config, int64_t step, const char* what,
                               double value);

}  // namespace lathe
