// Starts the processes of a run on this machine, as torchrun does, and ends these processes
// together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace lathe {

struct LaunchOptions {
  int ranks = 1;
  int max_restarts = 0;  ///< largest number of restarts after the loss of a process
  /// The arguments that each process gets after `lathe`.
  std::vector<std::string> command;
  /// Returns the number of processes of a restart, given that `left` processes were not lost.
  std::function<int(int left)> ranks_after_loss;
};

/// Runs the command in all processes until they end. Rank 0 prints to the terminal. The other ranks
/// show only warnings and errors. Passes stop signals on to all processes. If a process ends with
/// an error or is killed, the other processes end, too: by themselves within ten seconds, or by
/// SIGKILL. After the loss of a process, starts the processes again, at most `max_restarts` times.
/// Returns the first error that a process ended with. If there was no error, returns
/// Exit::peer_lost if a process was lost, otherwise Exit::stopped if a process was stopped, and
/// otherwise Exit::done.
Exit launch(const LaunchOptions& options);

}  // namespace lathe
