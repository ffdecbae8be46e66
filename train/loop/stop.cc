#include "train/loop/stop.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>

#include "core/io/log.h"
#include "core/stop_signals.h"

namespace lathe {
namespace {

// The signal handler uses these variables, which is allowed because they are lock-free. The handler
// prints by write(), which is async-signal-safe (POSIX).
std::atomic<int> asked{0}, interrupts{0}, uninterrupted{0};
std::atomic<int64_t> step_begun{0}, step_done{0}, step_saved{-1};
std::atomic<const char*> stops_when{""};
std::atomic<bool> clears_line{false}, counts_steps{false}, is_silent{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

/// Composes one line for standard error without allocating memory.
class Sentence {
 public:
  Sentence() {
    if (clears_line) add("\r\033[K");
  }
  Sentence& add(const char* text) {
    for (; *text != '\0' && size_ < text_.size(); ++text) text_[size_++] = *text;
    return *this;
  }
  Sentence& add(int64_t number) {
    std::array<char, 24> digits{};
    std::to_chars(digits.data(), digits.data() + digits.size() - 1, number);
    return add(digits.data());
  }
  void say() {
    if (is_silent) return;
    add("\n");
    if (::write(STDERR_FILENO, text_.data(), size_) < 0) return;  // standard error is closed
  }

 private:
  std::array<char, 300> text_{};
  size_t size_ = 0;
};

void report_unsaved_steps() {
  const int64_t done = step_done, saved = step_saved;
  Sentence s;
  s.add("stopped immediately");
  if (!counts_steps) return s.say();
  if (saved < 0)
    s.add(": there is no checkpoint yet, so ").add(done - step_begun).add(" steps are lost");
  else if (done > saved)
    s.add(": steps ")
        .add(saved + 1)
        .add(" to ")
        .add(done)
        .add(" are lost; the run resumes from step ")
        .add(saved);
  else
    s.add(": only the current step is lost; the run resumes from step ").add(saved);
  s.say();
}

void on_signal(int which) {
  const int error = errno;
  const bool first = asked.exchange(which) == 0;
  const int interrupt = which == SIGINT ? ++interrupts : 0;
  if (uninterrupted > 0 && !first) {
    Sentence().add("a checkpoint is being written; the process ends when it is complete").say();
  } else if (interrupt > 1) {
    report_unsaved_steps();
    _exit(128 + SIGINT);
  } else if (first) {
    Sentence()
        .add("stopping ")
        .add(stops_when)
        .add(which == SIGINT ? " (press Ctrl-C again to stop immediately)" : "")
        .say();
  }
  errno = error;
}

}  // namespace

void install_stop_handlers(const char* when) {
  stops_when = when;
  clears_line = is_terminal();
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int s : stop_signals) {
    if (!is_ignored(s)) sigaction(s, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  unblock_stop_signals();
}

BlockStopSignals::BlockStopSignals() {
  const sigset_t set = stop_signal_set();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}
BlockStopSignals::~BlockStopSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void unblock_stop_signals() {
  const sigset_t set = stop_signal_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int stop_signal() { return asked; }

void silence_stop_messages() { is_silent = true; }

void note_begin(int64_t step) { step_begun = step; }

void note_progress(int64_t step, int64_t saved_step) {
  counts_steps = true;
  step_done = step;
  step_saved = saved_step;
}

void note_saved(int64_t step) { step_saved = step; }

DeferSignals::DeferSignals() { ++uninterrupted; }
DeferSignals::~DeferSignals() { --uninterrupted; }

}  // namespace lathe
