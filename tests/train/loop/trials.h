// A run killed by SIGKILL and started again, against one that never stopped.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace lathe::test {

constexpr int killed = 128 + 9;

struct Kill {
  std::string point;  ///< a fault point, or "" for the clock
  double amount = 0;  ///< the how-manieth time that the process comes there, or seconds
  int64_t newest =
      -1;  ///< step of the newest checkpoint that must be there then, 0 for none; -1: not known
};

/// A tiny run of 40 steps with checkpoints at 10, 20, 30 and 40, which never stopped, and others of
/// the same config.
class Trials {
 public:
  /// `args` and `environment` are those of the others, not of the one that never stopped.
  explicit Trials(std::vector<std::string> args = {},
                  std::map<std::string, std::string> environment = {});
  Finished start(const std::string& run, const std::map<std::string, std::string>& environment,
                 double kill_after = -1) const;
  /// One run, killed as each of `kills` says, then finished. True where at least one kill struck
  /// before the end. Each start must resume from the newest checkpoint that was there before (the
  /// same bits would come out without), and a checkpoint that was there may go only for a later
  /// one.
  bool trial(const std::vector<Kill>& kills);

  double seconds() const { return seconds_; }
  const TempFolder& folder() const { return folder_; }

 private:
  /// The newest checkpoint's step, all of them verified; 0 where there is none.
  int64_t newest(const std::string& run) const;

  TempFolder folder_;
  std::vector<std::string> args_;
  std::map<std::string, std::string> environment_;
  double seconds_ = 0;
  int n_ = 0;
};

}  // namespace lathe::test
