// Reports steps: reads a step's results, times it, and writes its line to the console and to
// metrics.jsonl.
#pragma once

#include <vector>

#include "core/memory.h"
#include "core/timing.h"
#include "train/loop/console.h"
#include "train/session/peak.h"
#include "train/step/stepper.h"
#include "train/store/sinks.h"

namespace lathe {

class StepReporter {
 public:
  /// Everything given must outlive it. `state`: of the run, after `state.step` steps.
  StepReporter(const Session& session, const Data& data, const fs::path& run, RunState& state,
               MetricsSinks& metrics);

  /// Reads the results of step `state.step` and shows them; with `write`, also adds them to the
  /// metrics with `layers`. Updates the counters of `state`. Synchronizes a GPU. Throws
  /// Exit::diverged where the run diverged, with a bundle for `lathe replay` in the run folder.
  void report(const StepResult& result, bool write, std::vector<LayerStats> layers = {});
  /// Does the same without a line in the metrics, unless the step was reported already.
  void report_once(const StepResult& result);
  /// Writes a replay bundle of step `failed` (from 1), which ended with `e` before it changed
  /// anything. Then throws `e` again with a hint at `lathe replay`. With memory.update_in_backward,
  /// only throws `e`. Called by the rank that writes the run folder, while all others wait in
  /// read_stats().
  [[noreturn]] void keep_failed_step(const Error& e, int64_t failed) const;
  /// Excludes the time since the last report, such as evaluation and saving, from the next step's.
  void restart_step_timer();

  /// Returns the meter that computes MFU.
  MfuMeter& mfu_meter() { return mfu_meter_; }

 private:
  StepStats read_stats(const StepResult& result) const;
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
  decltype(MemoryStats::peak) last_reported_peaks_{};  // those in metrics.jsonl
  int64_t last_report_step_;
  bool has_warned_of_no_targets_ = false;
  std::vector<int> slow_in_row_;  // of each rank, the logged steps in a row in which it was slow
  Clock::time_point last_report_time_ = Clock::now();
};

/// Throws Exit::diverged for the last step of a run, whose loss `value` is not finite.
[[noreturn]] void end_diverged(const OptimConfig& config, int64_t step, const char* what,
                               double value);

}  // namespace lathe
