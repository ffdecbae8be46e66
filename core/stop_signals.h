// Defines the signals that ask a process to save its state and stop.
#pragma once

#include <signal.h>

#include <array>

namespace lathe {

inline constexpr std::array stop_signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};

/// Returns whether this process must ignore a stop signal. `nohup` starts a command with SIGHUP
/// ignored, so that the command continues after its terminal has closed.
inline bool is_ignored(int stop_signal) {
  struct sigaction now{};
  return stop_signal == SIGHUP && sigaction(stop_signal, nullptr, &now) == 0 &&
         now.sa_handler == SIG_IGN;
}

/// Returns the set of the stop signals that this process does not ignore.
inline sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : stop_signals) {
    if (!is_ignored(s)) sigaddset(&set, s);
  }
  return set;
}

}  // namespace lathe
