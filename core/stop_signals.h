// Defines the signals that ask a process to save its state and stop.
#pragma once

#include <signal.h>

#include <array>

namespace lathe {

inline constexpr std::array stop_signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};

/// Returns the set of all stop signals.
inline sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : stop_signals) sigaddset(&set, s);
  return set;
}

}  // namespace lathe
