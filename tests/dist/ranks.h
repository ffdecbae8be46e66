// Helpers for runs on several processes of this machine.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/dtype.h"
#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/support/process.h"
#include "train/store/checkpoint_tensors.h"

namespace lathe::test {

/// Returns `keys` (each --key=value) with the keys of `more` added. A key of `more` replaces a key
/// with the same name.
inline std::vector<std::string> with_keys(std::vector<std::string> keys,
                                          const std::vector<std::string>& more) {
  for (const std::string& one : more) {
    const std::string name = one.substr(0, one.find('=') + 1);
    std::erase_if(keys, [&](const std::string& key) { return key.starts_with(name); });
    keys.push_back(one);
  }
  return keys;
}

/// Trains in the run folder runs/`name` with `ranks` processes, or without a launcher if `ranks` is
/// 1.
inline Finished train_on(const TempFolder& f, int ranks, const std::string& config,
                         const std::string& name, const std::vector<std::string>& keys) {
  std::vector<std::string> words;
  if (ranks > 1) words = {"launch", "-n", std::to_string(ranks), "--"};
  words.insert(words.end(), {"train", config, "--train.out_dir=runs/" + name});
  words.insert(words.end(), keys.begin(), keys.end());
  return run({.binary = "lathe",
              .args = words,
              .folder = f.path(),
              .environment = {},
              .apart = ranks > 1});
}

/// Returns the names, dtypes, sizes and bytes of the complete tensors of a checkpoint, whether one
/// process wrote it or several.
inline std::string tensors_of(const fs::path& checkpoint, CheckpointPart which) {
  const CheckpointTensors file(checkpoint, which);
  std::string all;
  for (const TensorEntry& listed : file.tensors()) {
    const TensorEntry& t = file.at(listed.name);
    all += t.name + " " + t.dtype + " " + describe(at::IntArrayRef(t.shape)) + "\n";
    all.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
    file.release(t);
  }
  return all;
}

/// Checks that the tensors of a checkpoint have the same bytes in two runs.
inline void check_same_tensors(const fs::path& a, const fs::path& b,
                               const std::string& checkpoint) {
  for (const auto which : {CheckpointPart::model, CheckpointPart::optimizer}) {
    const auto bytes = [&](const fs::path& run) {
      return tensors_of(run / "checkpoints" / checkpoint, which);
    };
    INFO(tensor_file_name(which));
    CHECK(bytes(a).size() > 1000);
    CHECK((bytes(a) == bytes(b)));
  }
}

/// Returns the results of a run: the lines of metrics.jsonl without times and memory, and the bytes
/// of a checkpoint's tensors.
inline std::string results_of(const fs::path& run, const std::string& checkpoint) {
  std::string all;
  std::string text = slurp(run / "metrics.jsonl");
  for (size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
    Json line = Json::parse(text.substr(0, end));
    for (const char* measured : {"time", "step_ms", "tokens_per_sec", "samples_per_sec", "mfu",
                                 "data_wait_ms", "memory_bytes", "memory", "ranks"})
      line.erase(measured);
    all += line.dump() + "\n";
  }
  for (const auto which : {CheckpointPart::model, CheckpointPart::optimizer})
    all += tensors_of(run / "checkpoints" / checkpoint, which);
  return all;
}

/// Trains runs on any number of processes. Each run has a separate folder, and all runs
/// share the same config keys.
class RunsOnRanks {
 public:
  /// `last`: the name of the checkpoint after the last step.
  RunsOnRanks(std::vector<std::string> keys, std::string last)
      : keys_(std::move(keys)), last_(std::move(last)) {
    make_data(folder_);
  }

  /// Trains on `ranks` processes with the shared keys, to which with_keys() adds `more`. Returns
  /// the run folder.
  fs::path train(int ranks, const Kind& kind, const std::vector<std::string>& more) {
    write_config(folder_, kind);
    const std::string name = std::to_string(n_++);
    const Finished done = train_on(folder_, ranks, "kind.toml", name, with_keys(keys_, more));
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
    return folder_ / ("runs/" + name);
  }
  /// Calls train(), and returns the results of the run.
  std::string results(int ranks, const Kind& kind, const std::vector<std::string>& more) {
    return results_of(train(ranks, kind, more), last_);
  }

 private:
  TempFolder folder_;
  std::vector<std::string> keys_;
  std::string last_;
  int n_ = 0;
};

/// Returns a run's values of the metric `name` from metrics.jsonl, in order.
inline std::vector<double> numbers_of(const fs::path& run, const char* name) {
  std::vector<double> all;
  std::istringstream lines(slurp(run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    if (json.contains(name)) all.push_back(json[name].get<double>());
  }
  return all;
}

/// Returns the largest relative difference between two runs' values of the metric `name`.
inline double difference_between(const fs::path& a, const fs::path& b, const char* name) {
  const std::vector<double> x = numbers_of(a, name), y = numbers_of(b, name);
  REQUIRE(x.size() == y.size());
  REQUIRE(!x.empty());
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i)
    largest = std::max(largest, std::fabs(x[i] - y[i]) / std::fabs(x[i]));
  return largest;
}

/// Returns the statistics of all ranks in the last logged step.
inline Json rank_stats(const fs::path& run) {
  std::string text = slurp(run / "metrics.jsonl"), last;
  for (size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
    if (text.substr(0, end).find("\"ranks\"") != std::string::npos) last = text.substr(0, end);
  }
  return Json::parse(last).at("ranks");
}

/// Returns the largest number of bytes that a rank sent in the last logged step.
inline int64_t most_sent(const fs::path& run) {
  int64_t most = 0;
  for (const Json& rank : rank_stats(run))
    most = std::max(most, rank.at("sent_bytes").get<int64_t>());
  return most;
}

/// Returns the statistics of rank 0 in the last logged step.
inline Json first_rank_stats(const fs::path& run) { return rank_stats(run).at(0); }

/// Returns what `lathe plan` forecasts for one of `ranks` processes.
inline Json plan_of(const TempFolder& f, int ranks, const std::string& config,
                    const std::vector<std::string>& keys) {
  std::vector<std::string> words{"plan", config, "--ranks", std::to_string(ranks), "--json"};
  words.insert(words.end(), keys.begin(), keys.end());
  const Finished plan =
      run({.binary = "lathe", .args = words, .folder = f.path(), .environment = {}});
  INFO(plan.err);
  REQUIRE(plan.code == 0);
  return Json::parse(plan.out);
}

/// Checks that `lathe plan` forecasts the bytes that rank 0 of a finished run sent per step and,
/// within a twentieth, the peak memory of its tensors. `keys`: the config keys of the run. Returns
/// the measured peak in bytes.
inline double check_forecast(const TempFolder& f, int ranks, const std::vector<std::string>& keys,
                             const fs::path& run) {
  const Json stats = first_rank_stats(run);
  const Json forecast = plan_of(f, ranks, "kind.toml", keys);
  const double memory = stats.at("memory_bytes");
  CHECK(forecast.at("sent_bytes_per_step") == stats.at("sent_bytes"));
  CHECK(forecast.at("tensors_mb").get<double>() * (1 << 20) == Approx(memory).epsilon(0.05));
  return memory;
}

/// Returns a TCP port of the loopback interface on which no process listens.
inline int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

/// Runs the hidden test case with `tag` in `ranks` processes, with the variables of `environment`.
/// Returns how each process ended.
inline std::vector<Finished> run_on_ranks(int ranks, const std::string& tag,
                                          const std::map<std::string, std::string>& environment) {
  const TempFolder f;
  const std::string port = std::to_string(free_port());
  std::vector<Finished> done(static_cast<size_t>(ranks));

  // The threads join at the end of this block.
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        std::map<std::string, std::string> own{{"RANK", std::to_string(r)},
                                               {"WORLD_SIZE", std::to_string(ranks)},
                                               {"MASTER_ADDR", "127.0.0.1"},
                                               {"MASTER_PORT", port},
                                               {"OMP_NUM_THREADS", "1"}};
        own.insert(environment.begin(), environment.end());
        done[static_cast<size_t>(r)] =
            run({.binary = (binary_folder() / "tests/lathe_tests").string(),
                 .args = {tag},
                 .folder = f.path(),
                 .environment = own,
                 .apart = true});
      });
    }
  }
  return done;
}

/// Runs the hidden test case with `tag` in `ranks` processes, and checks that it passes in each
/// process.
inline void check_on_ranks(int ranks, const std::string& tag) {
  const std::vector<Finished> done = run_on_ranks(ranks, tag, {});
  for (int r = 0; r < ranks; ++r) {
    INFO("rank " << r << " of " << ranks << ": " << done[static_cast<size_t>(r)].out
                 << done[static_cast<size_t>(r)].err);
    CHECK(done[static_cast<size_t>(r)].code == 0);
  }
}

}  // namespace lathe::test
