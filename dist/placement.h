// Reads the rank of a process among the processes of its run from the environment that torchrun,
// `lathe launch`, Slurm or Open MPI sets.
#pragma once

#include <optional>
#include <string>

namespace lathe {

/// A position on one axis of the grid of processes.
struct RankAxis {
  int rank = 0, size = 1;
};

/// The sizes of the inner axes of the grid of processes (dist/world.h).
struct GridSizes {
  int pipeline = 1;  ///< number of stages of the pipeline
  int context = 1;   ///< number of ranks that divide the positions of each row of tokens
  int tensor = 1;    ///< number of ranks that compute a layer together

  /// Returns the number of processes that compute a micro-batch together.
  int replica() const { return pipeline * context * tensor; }

  bool operator==(const GridSizes&) const = default;
};

/// The rank of this process, and the host and port where all processes meet, from the environment
/// variables of a launcher.
struct Placement {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< rank and number of processes on this host
  std::string launcher;                ///< launcher whose variables were read, such as "torchrun"
  std::string host;                    ///< the host of the store where the processes meet
  int port = 0;
  bool agent_hosts_store = false;  ///< whether torchrun's agent, not rank 0, serves the store
  int listen_fd = -1;              ///< bound socket on which rank 0 serves the store; -1: none
  std::string attempt;             ///< text that differs between restarts that share a store
};

/// Returns the placement that the environment describes; nullopt if the environment describes no
/// placement or a single process. Throws Exit::usage with the variable that is missing or out of
/// range.
std::optional<Placement> placement_from_environment();

/// Returns how often `lathe launch` has restarted this run after a process was lost; 0 if
/// `lathe launch` did not start it.
int restarts_from_environment();

/// Returns the first host of a Slurm node list, such as "node03" for "node[03-07,9],other".
std::string first_host(const std::string& node_list);

}  // namespace lathe
