// Declares a run in this process, and its loop of steps, evaluations, samples and checkpoints.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/analysis/fit.h"
#include "train/loop/checkpointer.h"
#include "train/loop/layers.h"
#include "train/loop/progress.h"
#include "train/loop/reporter.h"
#include "train/loop/restore.h"
#include "train/loop/stop_controller.h"
#include "train/store/run_folder.h"

namespace lathe {

/// Trains a run in this process. Holds its data, its model and its state.
class Run {
 public:
  /// Makes the model. If `resume` is given, restores its state. Throws what
  /// Session::make_without_values(), Session::begin() and restore() throw.
  Run(const LoadedConfig& loaded, RunData data, const std::optional<ResumePoint>& resume);

  const Session& session() const { return session_; }
  /// Returns whether no step, evaluation or sample is left to do.
  bool is_finished() const { return is_trained() && !state_.eval_due && !state_.sample_due; }
  /// Logs that the run is finished, and returns Exit::done. Changes nothing in the run folder,
  /// except that it removes what an interrupted save left.
  Exit report_already_finished() const;

  /// Trains the run to its end and returns Exit::done, or until a stop and returns Exit::stopped.
  /// `lock` is the lock of the run folder; it is null on a rank that does not write the folder.
  /// `needs` is the forecast of resources, which is logged at the start; nullopt if there is no
  /// forecast, for example on a GPU.
  Exit train(const FolderLock* lock, const std::optional<ResourceNeeds>& needs);

 private:
  Exit train(MetricsSinks& metrics, const FolderLock* lock,
             const std::optional<ResourceNeeds>& needs);
  bool has_stalled() const { return lathe::has_stalled(state_, session_.config.train.early_stop); }
  bool is_trained() const { return state_.step >= session_.config.train.steps || has_stalled(); }
  void log_start(const std::optional<ResourceNeeds>& needs, const MfuMeter& meter) const;
  MetricsSinks open_run_folder();
  /// Holds the result of a step, and the layer statistics that were due after the step.
  struct StepOutcome {
    StepResult result;
    std::vector<LayerStats> layers{};
    std::vector<Histogram> histograms{};
  };
  StepOutcome run_one_step(Loader& loader, const DueActions& due, const StepReporter& reporter);
  bool evaluate(MetricsSinks& metrics, StopController& stop);
  bool sample(MetricsSinks& metrics, const StopController& stop) const;
  void check_last_validation() const;
  Exit save_and_stop(Checkpointer& checkpoints, const StopController& stop);
  Exit finish(Checkpointer& checkpoints) const;
  void log_summary() const;

  std::unique_ptr<Data> data_;
  Session session_;
  std::string unit_ = session_.task.unit();
  fs::path run_;
  fs::path source_;  // holds the initial weights; empty if train.init_from names no source
  RunState state_;
  RestoredRun restored_;
};

}  // namespace lathe
