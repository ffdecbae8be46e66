// A progress bar on a terminal: one line, rewritten in place; elsewhere nothing.
#pragma once

#include <string>
#include <vector>

#include "core/timing.h"

namespace lathe {

/// "1:02:03", "4:05".
std::string duration_text(double seconds);

/// Whether text on a terminal may have colors: NO_COLOR is not set.
bool wants_colour();

/// "WHAT [#####.....]  50%  fact  fact  eta 1:23" in at most `width` columns: the bar shrinks
/// first, then facts go from the end, then the rest is cut. `share`: 0 to 1; `eta` in seconds, < 0:
/// not known. `colour`: the bar in green.
std::string bar_line(const std::string& what, double share, const std::vector<std::string>& facts,
                     double eta, size_t width, bool colour);

/// What is done of something that takes a while. The line is taken away at the end, and where a
/// line is logged.
class ProgressBar {
 public:
  /// `what` stands before the bar; `all`: how much there is to do, in any unit; `done`: how much
  /// was done before.
  ProgressBar(std::string what, double all, double done = 0);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// Shows it, ten times a second at most. `eta`: seconds left; < 0: by the rate so far.
  void show(double done, const std::vector<std::string>& facts = {}, double eta = -1);
  /// The same with another `what`.
  void rename(std::string what) { what_ = std::move(what); }

 private:
  std::string what_;
  double all_, begun_;
  Clock::time_point begin_ = Clock::now(), shown_ = begin_;
};

}  // namespace lathe
