// A run in this process, and its loop: steps, evaluations, samples, checkpoints.
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

/// A run in this process: its data, its model and its state.
class Run {
 public:
  /// Makes the model, and restores the state of `resume` if that is given. Throws what
  /// Session::make_without_values(), Session::begin() and restore() throw.
  Run(const LoadedConfig& loaded, RunData data, const std::optional<ResumePoint>& resume);

  const Session& session() const { return session_; }
  /// Returns whether nothing is left to train, to evaluate or to sample.
  bool is_finished() const { return is_trained() && !state_.eval_due && !state_.sample_due; }
  /// Logs that the run is finished, and returns Exit::done. Changes nothing in the run folder,
  /// except that it removes what an interrupted save left.
  Exit report_already_finished() const;

  /// Trains to the end and returns Exit::done, or until a stop and returns Exit::stopped. `lock` is
  /// that of the run folder; null on a rank that does not write the folder. `needs` are logged at
  /// the start; nullopt if there is no forecast, for example on a GPU.
  Exit train(const FolderLock* lock, const std::optional<ResourceNeeds>& needs);

 private:
  bool has_stalled() const { return lathe::has_stalled(state_, session_.config.train.early_stop); }
  bool is_trained() const { return state_.step >= session_.config.train.steps || has_stalled(); }
  void log_start(const std::optional<ResourceNeeds>& needs, const MfuMeter& meter) const;
  MetricsSinks open_run_folder();
  /// A step, and the statistics of layers that were due after it.
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
  fs::path source_;  // of the initial weights, or empty
  RunState state_;
  RestoredRun restored_;
};

}  // namespace lathe
