// Saves a run's checkpoints, synchronously or in the background, where a thread writes the state
// while training continues. PyTorch's torch.distributed.checkpoint.async_save copies the complete
// state first. On CPUs, CheckpointSaver copies only what is not yet written when an update is about
// to change it.
#pragma once

#include <functional>
#include <future>
#include <vector>

#include "core/timing.h"
#include "train/store/checkpoint.h"

namespace lathe {

class CheckpointSaver {
 public:
  /// `saved_step`: step of the run's newest checkpoint; -1 if there is none.
  CheckpointSaver(fs::path run, const CheckpointConfig& config, int64_t saved_step);
  /// Waits for a save in progress. Its failure is only a warning here, since another error has
  /// ended the run by then.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Calls `before` (checks of the run folder, the sync of metrics.jsonl), then writes the current
  /// state of the run. With checkpoint.async_save, and unless `now`, a thread does both, and save()
  /// returns when everything is copied that can't be written from the memory of training. Then
  /// before_update() must be called before a parameter or the optimizer's state is changed. At most
  /// one save is in progress: the next one waits for it. Throws what save_checkpoint() throws;
  /// errors of the thread are thrown by the next call of save(), saved_step() or wait().
  void save(const RunState& state, const std::vector<NamedParameter>& parameters,
            const Optimizer& optimizer, std::function<void()> before, bool now);
  /// Copies what a save in progress has not written yet.
  void before_update();
  /// Returns the step of the newest complete checkpoint.
  int64_t saved_step();
  /// Waits until no save is in progress.
  void wait();
  /// Does the same, and logs which share of the time since construction saving took.
  void finish();

  /// Seconds for which saves delayed the caller.
  struct Times {
    int64_t saves = 0;
    int64_t waits = 0;   ///< saves that found the previous one still in progress
    double copy_s = 0;   ///< for saves in the background: checking and copying the state
    double wait_s = 0;   ///< for saves in progress
    double write_s = 0;  ///< synchronously
  };
  const Times& times() const { return times_; }

 private:
  bool is_writing() const;

  fs::path run_;
  Retention keep_;
  std::optional<at::ScalarType> dtype_;
  bool async_;
  int64_t saved_step_, next_step_ = -1;  // next: of the save in progress
  Snapshot copy_;                        // its thread reads it while a save is in progress
  Times times_;
  Clock::time_point begin_ = Clock::now();
  std::future<void> in_progress_;  // the last member: its destructor waits
};

}  // namespace lathe
