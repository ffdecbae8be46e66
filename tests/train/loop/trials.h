// Kill trials: a run that is killed by SIGKILL and started again must give the same results as a
// run that was never stopped.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace lathe::test {

constexpr int killed = 128 + 9;

struct Kill {
  std::string point;  ///< a fault point; "": kill after a time
  /// If `point` is set, the kill comes when the process reaches it for the `amount`-th time.
  /// Otherwise it comes after `amount` seconds.
  double amount = 0;
  /// The step of the newest checkpoint that must exist after the kill; 0: none; -1: not checked.
  int64_t newest = -1;
};

/// A reference run, which is never stopped, and trial runs of the same config, which are killed.
/// Each run has 40 steps, with checkpoints at 10, 20, 30 and 40.
class Trials {
 public:
  /// Runs the reference. `args` and `environment` apply to the trial runs only.
  explicit Trials(std::vector<std::string> args = {},
                  std::map<std::string, std::string> environment = {});
  /// Trains the run `run` with the environment variables of the trials and those of `environment`.
  /// `kill_after`: seconds until SIGKILL; negative: no kill.
  Finished start(const std::string& run, const std::map<std::string, std::string>& environment,
                 double kill_after = -1) const;
  /// Starts a trial run once for each of `kills`, which may kill it or come too late. If at least
  /// one start was killed, starts the run again, checks that it finishes with the results of the
  /// reference, and returns true. Also checks that each start resumes from the newest checkpoint,
  /// since a start from an older one would give the same results, and that a checkpoint is deleted
  /// only once a later one exists.
  bool trial(const std::vector<Kill>& kills);

  /// Returns the seconds that the reference run took.
  double seconds() const { return seconds_; }
  const TempFolder& folder() const { return folder_; }
  /// Verifies all checkpoints of a run, and returns the step of the newest one; 0 if there is none.
  int64_t newest(const std::string& run) const;

 private:
  TempFolder folder_;
  std::vector<std::string> args_;
  std::map<std::string, std::string> environment_;
  double seconds_ = 0;
  int n_ = 0;
};

}  // namespace lathe::test
