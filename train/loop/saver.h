// Saves a run's checkpoints, at once or in the background: a copy is taken, and a thread writes it
// while training goes on. What PyTorch's torch.distributed.checkpoint.async_save does.
#pragma once

#include <functional>
#include <future>
#include <vector>

#include "core/timing.h"
#include "train/store/checkpoint.h"

namespace lathe {

class CheckpointSaver {
 public:
  /// `saved_step`: of the run's newest checkpoint; -1 where there is none.
  CheckpointSaver(fs::path run, const CheckpointConfig& config, int64_t saved_step);
  /// Waits for the save under way; that it failed is a warning, for another error is on its way
  /// then.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Saves the run as it is now. With checkpoint.async_save, and unless `at_once`, it returns when
  /// everything is copied; a thread calls `before` (checks of the run folder, the sync of
  /// metrics.jsonl) and writes the copy. At most one save is under way: the next one waits for it.
  /// Errors are those of save_checkpoint; those of the thread are thrown by the next of save,
  /// saved_step and wait.
  void save(const RunState& state, const std::vector<NamedParameter>& parameters,
            const Optimizer& optimizer, std::function<void()> before, bool at_once);
  /// The step of the newest checkpoint that is whole.
  int64_t saved_step();
  /// Returns once no save is under way.
  void wait();
  /// The same, and says what saving took of the time since construction.
  void finish();

  /// What saving took of the caller's time.
  struct Times {
    int64_t saves = 0;
    int64_t waits = 0;   ///< saves that found the one before still under way
    double copy_s = 0;   ///< in the background: looking the parameters through and copying
    double wait_s = 0;   ///< for saves under way
    double write_s = 0;  ///< at once
  };
  const Times& times() const { return times_; }

 private:
  bool is_writing() const;

  fs::path run_;
  Retention keep_;
  std::optional<at::ScalarType> dtype_;
  bool async_;
  int64_t saved_step_, next_step_ = -1;  // next: of the save under way
  Snapshot copy_;                        // the thread's while a save is under way
  Times times_;
  Clock::time_point begin_ = Clock::now();
  std::future<void> under_way_;  // the last member: its destructor waits
};

}  // namespace lathe
