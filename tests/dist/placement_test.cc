// Tests of reading a launcher's environment variables, and of errors in them.
#include "dist/placement.h"

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/messages.h"

namespace {

using namespace lathe;

/// Sets the given environment variables of a launcher, and removes all other variables that a
/// launcher sets. Removes the given variables on destruction.
class Environment {
 public:
  explicit Environment(std::map<std::string, std::string> set) : set_(std::move(set)) {
    unset_all();
    for (const auto& [name, value] : set_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() { unset_all(); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void unset_all() {
    std::vector<std::string> names{
        "RANK",        "WORLD_SIZE",  "LOCAL_RANK",    "LOCAL_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "LATHE_STORE_FD"};
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      for (const char* prefix : {"TORCHELASTIC_", "SLURM_", "OMPI_COMM_WORLD_"}) {
        if (text.starts_with(prefix)) names.push_back(text.substr(0, text.find('=')));
      }
    }
    for (const std::string& name : names) unsetenv(name.c_str());
  }

  std::map<std::string, std::string> set_;
};

using Variables = std::map<std::string, std::string>;

const Variables torchrun{{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node7"},
                         {"MASTER_PORT", "29501"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RUN_ID", "run"},
                         {"TORCHELASTIC_RESTART_COUNT", "2"}};

TEST_CASE("variables of torchrun, Slurm and Open MPI set the placement of a process",
          "[placement]") {
  {
    const Environment e({});
    CHECK(!placement_from_environment());
  }

  {
    const Environment e(torchrun);
    const auto p = placement_from_environment();
    REQUIRE(p);
    CHECK(p->rank == 3);
    CHECK(p->size == 4);
    CHECK(p->local_rank == 1);
    CHECK(p->local_size == 2);
    CHECK(p->host == "node7");
    CHECK(p->port == 29501);
    CHECK(p->agent_hosts_store);
    CHECK(p->attempt == "run/2/");
  }

  {
    const Environment e({{"SLURM_STEP_NUM_TASKS", "8"},
                         {"SLURM_PROCID", "5"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_STEP_NODELIST", "gpu[03-04,9],cpu1"},
                         {"SLURM_JOB_ID", "70001"}});
    const auto p = placement_from_environment();
    REQUIRE(p);
    CHECK(p->rank == 5);
    CHECK(p->size == 8);
    CHECK(p->local_rank == 1);
    CHECK(p->host == "gpu03");
    CHECK(p->port == 20000 + 70001 % 20000);
    CHECK(!p->agent_hosts_store);
  }

  {
    // A batch script that calls lathe without srun trains in one process.
    const Environment e({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}});
    CHECK(!placement_from_environment());
  }

  {
    const Environment e({{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
    const auto p = placement_from_environment();
    REQUIRE(p);
    CHECK(p->rank == 1);
    CHECK(p->size == 2);
    CHECK(p->local_rank == 1);
    CHECK(p->local_size == 2);
    CHECK(p->host == "127.0.0.1");
  }

  {
    // A single process needs no placement.
    const Environment e({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
    CHECK(!placement_from_environment());
  }
}

TEST_CASE("a variable that is missing or out of range is named", "[placement]") {
  const auto refusal = [](Variables variables) {
    const Environment e(std::move(variables));
    try {
      placement_from_environment();
    } catch (const Error& error) {
      CHECK(error.code() == Exit::usage);
      return std::string(error.what());
    }
    return std::string();
  };

  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    Variables without = torchrun;
    without.erase(name);
    INFO(name << ": " << refusal(without));
    CHECK(refusal(without).starts_with(name));
  }

  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"RANK", "4"},
                                                        {"RANK", "-1"},
                                                        {"RANK", "1x"},
                                                        {"WORLD_SIZE", "0"},
                                                        {"MASTER_PORT", "70000"},
                                                        {"MASTER_PORT", "no"}}) {
    Variables wrong = torchrun;
    wrong[name] = value;
    INFO(name << " = " << value);
    CHECK(refusal(wrong).starts_with(name + " = " + value));
  }
}

TEST_CASE("first_host() returns the first host of a Slurm node list", "[placement]") {
  CHECK(first_host("one") == "one");
  CHECK(first_host("one,two") == "one");
  CHECK(first_host("node[01-04]") == "node01");
  CHECK(first_host("node[7,9-12]") == "node7");
  CHECK(first_host("node[003-004]-ib,other") == "node003-ib");
  CHECK(first_host("one,node[1-2]") == "one");
}

}  // namespace
