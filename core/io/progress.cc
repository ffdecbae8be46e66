#include "core/io/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/io/log.h"
#include "core/io/text.h"

namespace lathe {

std::string duration_text(double seconds) {
  const auto s = static_cast<long long>(std::clamp(seconds, 0.0, 1e15));
  if (s >= 3LL * 86400) return format("%lld days", s / 86400);
  return s >= 3600 ? format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60)
                   : format("%lld:%02lld", s / 60, s % 60);
}

bool wants_color() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (no_color == nullptr || *no_color == 0) &&
         (term == nullptr || std::string_view(term) != "dumb");
}

std::string bar_line(const std::string& what, double share, const std::vector<std::string>& facts,
                     double eta, size_t width, bool color) {
  constexpr size_t longest = 24, shortest = 5;
  share = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
  const std::string percent = format("%3.0f%%", std::floor(100 * share));

  // Color sequences take no columns, so widths are measured on a line without colors.
  const auto line = [&](size_t bar, size_t n_facts, bool with_eta, bool painted) {
    const auto filled = static_cast<size_t>(share * static_cast<double>(bar));
    std::string text = what + (what.empty() ? "" : " ");
    if (bar > 0) {
      text += "[" + std::string(painted ? "\033[32m" : "") + std::string(filled, '#') +
              std::string(painted ? "\033[39m" : "") + std::string(bar - filled, '.') + "] ";
    }
    text += percent;
    for (size_t i = 0; i < n_facts; ++i) text += "  " + facts[i];
    return text + (with_eta && eta >= 0 ? "  eta " + duration_text(eta) : "");
  };

  // Drop facts from the end until at least a short bar fits. If none fits even without facts, drop
  // the remaining time and try again with all facts. A bar takes 3 more columns for its brackets
  // and a space.
  for (const bool with_eta : {true, false}) {
    for (size_t n = facts.size() + 1; n-- > 0;) {
      const size_t without = line(0, n, with_eta, false).size();
      if (without + shortest + 3 <= width)
        return line(std::min(longest, width - without - 3), n, with_eta, color);
      if (without <= width && n == 0 && !with_eta) return line(0, n, with_eta, false);
    }
  }
  return line(0, 0, false, false).substr(0, width);
}

ProgressBar::ProgressBar(std::string what, double all, double done)
    : what_(std::move(what)), all_(all), begun_(done) {}

ProgressBar::~ProgressBar() { clear_progress(); }

void ProgressBar::show(double done, const std::vector<std::string>& facts, double eta) {
  const auto now = Clock::now();
  const bool at_end =
      done >= all_ && shown_ != begin_;  // a task that ends immediately shows no bar
  if (!is_terminal() || (now - shown_ < std::chrono::milliseconds(100) && !at_end)) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  if (eta < 0 && done > begun_ && seconds > 0.5) eta = seconds * (all_ - done) / (done - begun_);
  std::vector<std::string> shown;
  for (const std::string& fact : facts) shown.push_back(printable_line(fact));
  progress(bar_line(printable_line(what_), all_ > 0 ? done / all_ : 1, shown, eta,
                    terminal_width() - 1, wants_color()));
}

}  // namespace lathe
