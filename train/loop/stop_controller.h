// Declares StopController, which decides after each step whether a run stops because of a signal or
// train.max_time.
#pragma once

#include "dist/world.h"
#include "train/loop/stop.h"
#include "train/step/stepper.h"

namespace lathe {

/// Combines the reasons to stop a run.
class StopController {
 public:
  /// Creates a controller with a limit of `max_time` seconds since the process started. 0 means no
  /// limit.
  explicit StopController(double max_time) : max_time_(max_time) {}

  /// Records that a step or an evaluation was completed. Before the first call, train.max_time does
  /// not stop the process, so a run that is restarted again and again still makes progress.
  void note_progress() { made_progress_ = true; }
  /// Returns whether train.max_time has passed and this process has made progress.
  bool is_out_of_time() const {
    return made_progress_ && max_time_ > 0 && process_age() >= max_time_;
  }
  /// Returns whether this process was asked to stop.
  bool asked() const { return stop_signal() != 0 || is_out_of_time(); }
  /// Returns whether any process of the run was asked to stop. All processes must call this
  /// function together, and all get the same answer.
  bool agreed() const { return world().any(asked()); }

 private:
  double max_time_;
  bool made_progress_ = false;
};

}  // namespace lathe
