// Implements `lathe watch`, which shows runs in the terminal and keeps the display up to date. The
// command only reads files, so the runs may be on another machine that shares its files.
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "core/io/log.h"
#include "core/io/progress.h"
#include "core/io/text.h"
#include "train/commands/braille.h"
#include "train/commands/commands.h"
#include "train/store/curves.h"

namespace lathe {
namespace {

volatile sig_atomic_t ended = 0;

/// Switches the terminal to its alternate screen. There, keys arrive immediately and without echo.
/// The destructor restores the terminal.
class Screen {
 public:
  Screen() {
    has_keys_ = ::isatty(STDIN_FILENO) != 0 && ::tcgetattr(STDIN_FILENO, &before_) == 0;
    if (has_keys_) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);  // ISIG: Ctrl-C arrives as a key
      ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    struct sigaction action{};
    action.sa_handler = [](int) { ended = 1; };
    for (const int s : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(s, &action, nullptr);
    show("\033[?1049h\033[?25l");
  }
  ~Screen() {
    show("\033[?25h\033[?1049l");
    if (has_keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Draws a frame over the previous one without clearing the screen, so that it does not flicker.
  static void draw(const std::vector<std::string>& lines) {
    std::string frame = "\033[H";
    for (size_t i = 0; i < lines.size(); ++i) frame += (i > 0 ? "\r\n" : "") + lines[i] + "\033[K";
    show(frame + "\033[J");
  }
  /// Waits up to `ms` milliseconds for a key. Returns true if a key or a signal ends the command.
  bool ends_within(int ms) const {
    pollfd keys{has_keys_ ? STDIN_FILENO : -1, POLLIN, 0};
    if (::poll(&keys, 1, ms) <= 0) return ended != 0;
    char key = 0;
    // 3 and 4 are Ctrl-C and Ctrl-D.
    return ended != 0 || ::read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q' ||
           key == 3 || key == 4;
  }

 private:
  /// Writes to stdout directly, because std::cout escapes control sequences.
  static void show(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  termios before_{};
  bool has_keys_ = false;
};

size_t screen_height() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

/// Returns the first `width` columns of a UTF-8 text. Control sequences take no columns.
std::string fitted(const std::string& text, size_t width) {
  std::string out;
  size_t columns = 0;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '\033') {
      const size_t end = std::min(text.find('m', i), text.size() - 1) + 1;
      out += text.substr(i, end - i);
      i = end;
      continue;
    }
    const size_t n = std::max<size_t>(code_point_length(text, i), 1);
    if (columns++ < width) out += text.substr(i, n);
    i += n;
  }
  return out;
}

/// Returns a line with statistics of a run's processes in the last logged step: the smallest and
/// the largest value of each, and the rank with the largest value. Returns "" for a run on one
/// process.
std::string ranks_line(const Curves& run) {
  // In earlier steps, the run may have had more processes.
  const Series* loss = run.find("loss");
  const auto in_last_step = [&](const Series* s) {
    return s != nullptr && loss != nullptr && s->steps.back() == loss->steps.back();
  };
  const auto range = [&](const std::string& statistic, double unit, const char* form) {
    double least = INFINITY, most = -INFINITY;
    int at = 0;
    for (int rank = 0;; ++rank) {
      const Series* s = run.find(str("ranks/", statistic, "/", rank));
      if (!in_last_step(s)) break;
      const double value = s->values.back() / unit;
      least = std::min(least, value);
      if (value > most) {
        most = value;
        at = rank;
      }
    }
    return format(form, least, most, at);
  };

  for (const char* statistic : {"busy_ms", "wait_ms", "memory_bytes"}) {
    if (!in_last_step(run.find(str("ranks/", statistic, "/1")))) return "";
  }
  return "  ranks: work " + range("busy_ms", 1, "%.0f-%.0f ms (rank %d)") + ", wait " +
         range("wait_ms", 1, "%.0f-%.0f ms (rank %d)") + ", memory " +
         range("memory_bytes", 1e6, "%.0f-%.0f MB (rank %d)");
}

/// Returns the lines of the screen. These are one line for each run, or two if it has several
/// processes, and then up to three plots if there is room for them.
std::vector<std::string> frame(const std::vector<Curves>& runs, size_t width, size_t height,
                               bool color) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunSummary s = summarize(runs[i].run());
    std::string line = (color ? curve_color(i) : "") + printable_line(s.run.string()) +
                       (color ? "\033[39m" : "") + "  " + s.state + "  step " +
                       str(s.step, s.steps > 0 ? str("/", s.steps) : "");

    if (s.loss) line += format("  loss %.4f", *s.loss);
    if (s.val_loss) line += format("  val loss %.4f", *s.val_loss);
    if (s.units_per_sec) line += format("  %.0f %s/s", *s.units_per_sec, s.unit.c_str());
    if (s.mfu) line += format("  mfu %.0f%%", 100 * *s.mfu);

    // Only a run in progress has an estimated end. For other runs, show their age.
    const Series* ms = runs[i].find("step_ms");
    if (s.state == "running" && ms != nullptr && s.steps > s.step)
      line += "  eta " +
              duration_text(1e-3 * ms->values.back() * static_cast<double>(s.steps - s.step));
    else if (!std::isnan(s.age_s))
      line += "  " + duration_text(s.age_s) + " ago";

    lines.push_back(fitted(line, width));
    if (const std::string ranks = ranks_line(runs[i]); !ranks.empty())
      lines.push_back(fitted(ranks, width));
  }

  constexpr size_t least = 6;  // smallest number of lines for a plot with its title
  std::vector<std::string> shown;
  for (const char* name : {"loss", "val_loss", "mse", "accuracy", "lr", "grad_norm"}) {
    const bool there = std::any_of(runs.begin(), runs.end(),
                                   [&](const Curves& r) { return r.find(name) != nullptr; });
    if (there && lines.size() + least * (shown.size() + 1) <= height && shown.size() < 3)
      shown.emplace_back(name);
  }

  // The plots share the lines below the lines of the runs.
  const size_t room = shown.empty() ? 0 : (height - std::min(height, lines.size())) / shown.size();
  for (const std::string& name : shown) {
    std::vector<BrailleCurve> curves;
    for (const Curves& run : runs) {
      // A run without this curve gets an empty curve, so that colors match the lines above.
      BrailleCurve curve;
      if (const Series* s = run.find(name)) curve = {{s->steps.begin(), s->steps.end()}, s->values};
      curves.push_back(std::move(curve));
    }

    lines.push_back(name);
    for (const std::string& line : braille_plot(curves, width, room - 1, color))
      lines.push_back(line);
  }
  return lines;
}

Exit run_watch(const Arguments& arguments) {
  std::vector<Curves> runs;
  for (const std::string& word : arguments.positionals) runs.emplace_back(word);
  const auto every = arguments.number("every", 2, between(0.1, 3600), false);
  const bool live = is_terminal(), color = live && wants_color();
  const auto read = [&] {
    for (Curves& run : runs) run.read();
  };
  read();
  if (!live) {
    for (const std::string& line : frame(runs, 80, 24, false)) std::cout << line << "\n";
    return Exit::done;
  }
  const Screen screen;
  do {
    read();
    Screen::draw(frame(runs, terminal_width(), screen_height(), color));
  } while (!screen.ends_within(static_cast<int>(1000 * every)));
  return Exit::done;
}

}  // namespace

Command watch_command() {
  return {.name = "watch",
          .usage = "RUN...",
          .doc =
              "Draw runs with their curves in the terminal until q or Ctrl-C, or once if standard "
              "output is not a terminal.",
          .examples = {"watch runs/quickstart", "watch runs/a runs/b --every 10"},
          .flags = {{"every", "Read the runs again after this many seconds. Default: 2."}},
          .max_positionals = 16,
          .run = run_watch};
}

}  // namespace lathe
