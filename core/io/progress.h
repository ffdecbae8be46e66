// A progress bar on a terminal: one line, rewritten in place; elsewhere nothing.
#pragma once

#include <string>
#include <vector>

#include "core/timing.h"

namespace lathe {

/// Returns "4:05", "1:02:03", "346 days".
std::string duration_text(double seconds);

/// Returns whether text on a terminal may have colors: NO_COLOR is not set.
bool wants_color();

/// Returns "WHAT [#####.....]  50%  fact  fact  eta 1:23" in at most `width` columns: the bar
/// shrinks first, then facts are dropped from the end, then the eta, then the bar, then the line is
/// cut. `share`: 0 to 1; `eta`: seconds, < 0 if not known. `color` makes the bar green.
std::string bar_line(const std::string& what, double share, const std::vector<std::string>& facts,
                     double eta, size_t width, bool color);

/// Shows the progress of a task. The destructor removes the line, and so does logging.
class ProgressBar {
 public:
  /// `what` is shown before the bar; `all` is the amount of work in any unit; `done` is the amount
  /// done before.
  ProgressBar(std::string what, double all, double done = 0);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// Shows the line, at most ten times a second. `eta`: seconds left; < 0: computed from the rate
  /// so far.
  void show(double done, const std::vector<std::string>& facts = {}, double eta = -1);
  /// Changes `what`.
  void rename(std::string what) { what_ = std::move(what); }

 private:
  std::string what_;
  double all_, begun_;
  Clock::time_point begin_ = Clock::now(), shown_ = begin_;
};

}  // namespace lathe
