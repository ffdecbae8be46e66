// Declares a progress bar: a line on a terminal, which is rewritten in place. Nothing is shown if
// standard output is not a terminal.
#pragma once

#include <string>
#include <vector>

#include "core/timing.h"

namespace lathe {

/// Returns a duration as text: "4:05", "1:02:03", "346 days".
std::string duration_text(double seconds);

/// Returns whether text on a terminal may have colors: NO_COLOR is unset or empty, and TERM is not
/// "dumb".
bool wants_color();

/// Returns a line such as "WHAT [#####.....]  50%  fact  fact  eta 1:23" with at most `width`
/// columns. If the line is too long, the bar is shortened first; then facts are dropped from the
/// end. If the line is still too long, the eta is dropped instead, and facts only as far as
/// necessary; then the bar is dropped; then the line is cut. `share` is the completed share, from 0
/// to 1. `eta` is the remaining time in seconds; < 0 means that it is unknown. `color` makes the
/// bar green.
std::string bar_line(const std::string& what, double share, const std::vector<std::string>& facts,
                     double eta, size_t width, bool color);

/// Shows the progress of a task. The destructor removes the progress line. Logging a line removes
/// the progress line until the next call of show().
class ProgressBar {
 public:
  /// `what` is the text before the bar; `all` is the amount of work, in any unit; `done` is the
  /// amount that is done already.
  ProgressBar(std::string what, double all, double done = 0);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// Shows the progress line, at most ten times a second. `eta` is the remaining time in seconds;
  /// if it is negative, it is computed from the rate so far.
  void show(double done, const std::vector<std::string>& facts = {}, double eta = -1);
  /// Changes the text before the bar.
  void rename(std::string what) { what_ = std::move(what); }

 private:
  std::string what_;
  double all_, begun_;
  Clock::time_point begin_ = Clock::now(), shown_ = begin_;
};

}  // namespace lathe
