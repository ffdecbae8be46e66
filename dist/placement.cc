#include "dist/placement.h"

#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "core/io/text.h"

namespace lathe {
namespace {

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

/// Reads a variable that must be set to an integer from `least` to `most`.
int number(const char* name, int least, int most, const char* launcher) {
  const char* text = variable(name);
  if (text == nullptr) {
    fail(Exit::usage, name, " is not set, but other variables of ", launcher,
         " are; set all of them, or none to train in one process");
  }
  if (const auto value = integer_between(text, least, most)) return *value;
  fail(Exit::usage, name, " = ", text, " in the environment must be a whole number from ", least,
       " to ", most);
}

constexpr int most_ranks = 65536;

/// Reads the ranks; `local_rank` and `local_size` may be missing.
Placement ranks(const char* launcher, const char* rank, const char* size, const char* local_rank,
                const char* local_size) {
  Placement p;
  p.launcher = launcher;
  p.size = number(size, 1, most_ranks, launcher);
  p.rank = number(rank, 0, p.size - 1, launcher);
  if (variable(local_rank) != nullptr) p.local_rank = number(local_rank, 0, most_ranks, launcher);
  if (variable(local_size) != nullptr) p.local_size = number(local_size, 1, most_ranks, launcher);
  return p;
}

/// Sets the host and port where the processes meet to MASTER_ADDR and MASTER_PORT. `host` and
/// `port` replace variables that are not set; "" and 0 mean that there is no replacement.
void set_meeting_point(Placement& p, const std::string& host, int port) {
  p.host = host;
  if (const char* given = variable("MASTER_ADDR")) p.host = given;
  if (p.host.empty())
    fail(Exit::usage, "MASTER_ADDR is not set; set it to the host of rank 0 of ", p.launcher);
  const bool has_port = port > 0 && variable("MASTER_PORT") == nullptr;
  p.port = has_port ? port : number("MASTER_PORT", 1, 65535, p.launcher.c_str());
}

/// Returns a port on which all processes of a job, or of a step of a Slurm job, agree. Other jobs
/// are unlikely to use this port. Returns 29500 if `job` is null.
int port_of(const char* job, const char* step) {
  if (job == nullptr) return 29500;
  const auto number_of = [](const char* text) {
    return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  };
  return 20000 + static_cast<int>((number_of(job) + 7 * number_of(step)) % 20000);
}

}  // namespace

std::string first_host(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  // For "node[03-07,9]-ib", append to "node" the first number and the text after the closing
  // bracket, up to a comma.
  const size_t number_end = list.find_first_of(",-]", bracket), closing = list.find(']', bracket);
  if (closing == std::string::npos) return list.substr(0, bracket);
  const size_t end = list.find(',', closing);
  return list.substr(0, bracket) + list.substr(bracket + 1, number_end - bracket - 1) +
         list.substr(closing + 1, end == std::string::npos ? end : end - closing - 1);
}

int restarts_from_environment() {
  return variable("LATHE_RESTARTS") != nullptr
             ? number("LATHE_RESTARTS", 0, 1 << 30, "lathe launch")
             : 0;
}

std::optional<Placement> placement_from_environment() {
  Placement p;
  if (variable("RANK") != nullptr || variable("WORLD_SIZE") != nullptr) {
    p = ranks("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    if (p.size == 1) return std::nullopt;
    set_meeting_point(p, "", 0);
    if (const char* fd = variable("LATHE_STORE_FD"); fd != nullptr && p.rank == 0)
      p.listen_fd = number("LATHE_STORE_FD", 3, 1 << 20, "lathe launch");
    const char* hosted = variable("TORCHELASTIC_USE_AGENT_STORE");
    p.agent_hosts_store = hosted != nullptr && std::string(hosted) == "True";
    // The agent's store outlives a restart and still has the keys of the previous processes, so
    // each attempt needs a different name.
    for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"})
      p.attempt += std::string(variable(name) != nullptr ? variable(name) : "") + "/";
    return p;
  }

  // Only srun sets SLURM_STEP_NUM_TASKS. A batch script that calls lathe directly does not have it.
  if (variable("SLURM_STEP_NUM_TASKS") != nullptr) {
    p = ranks("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
              "SLURM_NTASKS_PER_NODE");
    if (p.size == 1) return std::nullopt;
    const char* nodes = variable("SLURM_STEP_NODELIST");
    set_meeting_point(p, nodes != nullptr ? first_host(nodes) : "",
                      port_of(variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID")));
    return p;
  }

  if (variable("OMPI_COMM_WORLD_SIZE") != nullptr) {
    p = ranks("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    if (p.size == 1) return std::nullopt;
    set_meeting_point(p, p.local_size == p.size ? "127.0.0.1" : "",
                      port_of(variable("OMPI_MCA_ess_base_jobid"), nullptr));
    return p;
  }
  return std::nullopt;
}

}  // namespace lathe
