// The signals that ask a process to stop with its state saved.
#pragma once

#include <signal.h>

#include <array>

namespace lathe {

inline constexpr std::array stop_signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};

/// Returns these signals as a set.
inline sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : stop_signals) sigaddset(&set, s);
  return set;
}

}  // namespace lathe
