// Declares CheckpointSaver, which saves a run's checkpoints either synchronously or in the
// background. In the background, a thread writes the state while training continues. PyTorch's
// torch.distributed.checkpoint.async_save copies the complete state first. On CPUs, CheckpointSaver
// copies only the tensors that are not written yet when an update is about to change them.
#pragma once

#include <functional>
#include <future>
#include <vector>

#include "core/timing.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Writes the checkpoints of a run.
class CheckpointSaver {
 public:
  /// `saved_step`: step of the run's newest checkpoint; -1 if the run has no checkpoint.
  CheckpointSaver(fs::path run, const CheckpointConfig& config, int64_t saved_step);
  /// Waits for a save in progress. If that save failed, only logs a warning, since another error
  /// has already ended the run.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Calls `before`, which checks the run folder and syncs metrics.jsonl, and then writes the
  /// current state of the run. If checkpoint.async_save is true and `now` is false, a thread calls
  /// `before` and writes. On CPUs, the thread reads the live tensors, so before_update() must be
  /// called before a parameter or the optimizer's state changes. All other state is copied before
  /// save() returns. At most one save is in progress: the next save waits for it. Throws what
  /// save_checkpoint() throws. Errors of the thread are thrown by the next call of save(),
  /// saved_step() or wait().
  void save(const RunState& state, const std::vector<NamedParameter>& parameters,
            const Optimizer& optimizer, std::function<void()> before, bool now);
  /// Copies the live tensors that a save in progress has not written yet.
  void before_update();
  /// Returns the step of the newest complete checkpoint.
  int64_t saved_step();
  /// Waits until no save is in progress.
  void wait();
  /// Calls wait(), and logs the share of the time since construction for which saves delayed
  /// training.
  void finish();

  /// The number of saves, and the seconds for which they delayed the caller.
  struct Times {
    int64_t saves = 0;
    int64_t waits = 0;   ///< number of saves with `now` = false that found the previous save still
                         ///< in progress
    double copy_s = 0;   ///< seconds for checking and copying the state for background saves
    double wait_s = 0;   ///< seconds of waiting for saves in progress
    double write_s = 0;  ///< seconds of writing synchronously
  };
  const Times& times() const { return times_; }

 private:
  bool is_writing() const;

  fs::path run_;
  Retention keep_;
  std::optional<at::ScalarType> dtype_;
  bool async_;
  int64_t saved_step_, next_step_ = -1;  // next_step_: the step of the save in progress
  Snapshot copy_;                        // read by the thread of a save in progress
  Times times_;
  Clock::time_point begin_ = Clock::now();
  std::future<void> in_progress_;  // must be the last member: its destructor waits for the thread
};

}  // namespace lathe
