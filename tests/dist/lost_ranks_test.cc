// Tests of ranks that are killed, hang, disagree or are asked to stop.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/io/text.h"
#include "core/timing.h"
#include "dist/world.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;
using lathe::test::Finished;
using lathe::test::results_of;
using lathe::test::slurp;
using lathe::test::TempFolder;
using lathe::test::train_on;
using Words = std::vector<std::string>;

/// Returns the id of the process that runs in this folder with RANK=`rank` in its environment, or 0
/// if there is none.
pid_t process_of(int rank, const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid == 0) continue;
    std::error_code error;
    if (fs::read_symlink(entry.path() / "cwd", error) != folder) continue;
    const std::string environment = slurp(entry.path() / "environ");
    if (environment.find("RANK=" + std::to_string(rank) + '\0') == 0 ||
        environment.find('\0' + ("RANK=" + std::to_string(rank)) + '\0') != std::string::npos)
      return pid;
  }
  return 0;
}

/// Sends a signal to a rank once the run has `lines` lines of metrics.
class Attack {
 public:
  Attack(int rank, int signal, const TempFolder& f, const std::string& run, int lines)
      : thread_([=, this, folder = f.path()] {
          const fs::path metrics = folder / "runs" / run / "metrics.jsonl";
          while (!over_) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            if (!fs::exists(metrics)) continue;
            const std::string text = slurp(metrics);
            if (std::count(text.begin(), text.end(), '\n') < lines) continue;
            const pid_t pid = process_of(rank, folder);
            if (pid > 0) kill(pid, signal);
            struck_ = pid > 0;
            return;
          }
        }) {}
  ~Attack() {
    over_ = true;
    thread_.join();
  }
  Attack(const Attack&) = delete;
  Attack& operator=(const Attack&) = delete;
  bool struck() const { return struck_; }

 private:
  std::atomic<bool> over_{false}, struck_{false};
  std::thread thread_;
};

Words long_run(const Words& more = {}) {
  const Words keys{"--train.steps=100000", "--train.eval_interval=0", "--dist.timeout=6",
                   "--checkpoint.interval=5"};
  return lathe::test::with_keys(keys, more);
}

TEST_CASE("a killed or hung rank ends the run with an error that names it, and checkpoints stay",
          "[lost_ranks]") {
  const TempFolder f;
  lathe::test::make_tiny_run(f.path());
  struct Loss {
    int signal, rank;
    const char* layout;  // a key of [dist]
  };

  // Rank 0 never gets SIGSTOP, because this test reads its output.
  const std::vector<Loss> losses{{SIGKILL, 0, "tensor=1"},   {SIGKILL, 1, "tensor=1"},
                                 {SIGSTOP, 1, "tensor=1"},   {SIGKILL, 1, "tensor=2"},
                                 {SIGSTOP, 1, "tensor=2"},   {SIGKILL, 0, "pipeline=2"},
                                 {SIGKILL, 1, "pipeline=2"}, {SIGSTOP, 1, "pipeline=2"}};

  for (const auto& [signal, rank, layout] : losses) {
    const std::string name = str(signal, "-", rank, "-", layout);
    INFO("signal " << signal << " to rank " << rank << ", dist." << layout);
    const auto begin = Clock::now();
    const Attack attack(rank, signal, f, name, 12);
    const Finished done = train_on(f, 2, "tiny.toml", name, long_run({str("--dist.", layout)}));
    INFO(done.out << done.err);

    CHECK(attack.struck());
    CHECK(done.code == 7);
    CHECK_THAT(done.err, ContainsSubstring("rank " + std::to_string(rank)));
    CHECK_THAT(done.err, ContainsSubstring("no longer answers") || ContainsSubstring("has ended"));
    CHECK_THAT(done.err,
               ContainsSubstring(" on " + host_name() + " ") && ContainsSubstring("last seen"));
    CHECK(done.err.find("frame #") == std::string::npos);
    CHECK(seconds_since(begin) < 60);

    // No process is left, and the checkpoints are undamaged.
    CHECK(process_of(0, f.path()) == 0);
    CHECK(process_of(1, f.path()) == 0);
    CHECK(lathe::test::lathe_in(f, {"verify", "runs/" + name}).code == 0);
  }
}

TEST_CASE("if one of four ranks hangs, the other ranks name it", "[lost_ranks]") {
  const TempFolder f;
  lathe::test::make_tiny_run(f.path());
  const Attack attack(2, SIGSTOP, f, "hung", 150);  // ranks report every half second
  const Finished done = train_on(f, 4, "tiny.toml", "hung", long_run({"--train.grad_accum=4"}));
  INFO(done.out << done.err);
  CHECK(attack.struck());
  CHECK(done.code == 7);
  CHECK_THAT(done.err, ContainsSubstring("error: rank 2 of 4") && ContainsSubstring("in step "));
  for (const char* other : {"error: rank 1: rank 2 of 4", "error: rank 3: rank 2 of 4"})
    CHECK_THAT(done.err, ContainsSubstring(other));
}

TEST_CASE("a run that is restarted after a lost rank is bitwise equal to an uninterrupted one",
          "[lost_ranks]") {
  const TempFolder f;
  lathe::test::make_tiny_run(f.path());
  const Words keys{"--train.steps=60", "--dist.timeout=20", "--checkpoint.interval=5",
                   "--train.grad_accum=4"};
  REQUIRE(train_on(f, 1, "tiny.toml", "whole", keys).code == 0);

  // Three ranks can't divide the four micro-batches, so all four ranks are also restarted if
  // --min-ranks is three.
  for (const auto& [least, restarted] :
       std::vector<std::pair<std::string, std::string>>{{"4", "4"}, {"3", "4"}, {"2", "2"}}) {
    const std::string name = std::string("at-least-") + least;
    Words words{"launch",
                "-n",
                "4",
                "--max-restarts",
                "2",
                "--min-ranks",
                least,
                "--",
                "train",
                "tiny.toml",
                "--train.out_dir=runs/" + name};
    // A restart resumes the run even if the first start must not resume.
    if (least == "2") words.push_back("--checkpoint.resume=never");
    words.insert(words.end(), keys.begin(), keys.end());
    const Attack attack(3, SIGKILL, f, name, 12);
    const Finished done = lathe::test::lathe_in_new_process(f, words);
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
    CHECK(attack.struck());
    CHECK_THAT(done.out, ContainsSubstring("restart 1 of 2 with " + restarted));
    CHECK((results_of(f / ("runs/" + name), "step-00000060") ==
           results_of(f / "runs/whole", "step-00000060")));
  }
}

TEST_CASE("a stop signal to one rank stops all after the same step, with a checkpoint",
          "[lost_ranks]") {
  const TempFolder f;
  lathe::test::make_tiny_run(f.path());
  const Attack attack(1, SIGTERM, f, "stopped", 12);
  const Finished done = train_on(f, 2, "tiny.toml", "stopped", long_run({"--dist.timeout=30"}));
  INFO(done.out << done.err);
  CHECK(done.code == 75);
  CHECK_THAT(done.out, ContainsSubstring("stopped") && ContainsSubstring("another process"));
  CHECK(attack.struck());
  CHECK(lathe::test::lathe_in(f, {"verify", "runs/stopped"}).code == 0);
}

/// Starts processes with the environments that torchrun would set, and waits for them.
std::vector<Finished> start(const TempFolder& f, const std::vector<Words>& commands,
                            std::vector<std::map<std::string, std::string>> environments) {
  std::vector<Finished> done(commands.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < commands.size(); ++i) {
    threads.emplace_back([&, i] {
      done[i] = lathe::test::run({.binary = "lathe",
                                  .args = commands[i],
                                  .folder = f.path(),
                                  .environment = environments[i],
                                  .apart = true});
    });
  }
  for (auto& t : threads) t.join();
  return done;
}

std::map<std::string, std::string> rank_of_2(int rank, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

TEST_CASE("other ranks print why rank 0 ended, although the store ended with rank 0",
          "[lost_ranks]") {
  const TempFolder f;
  lathe::test::make_tiny_run(f.path());
  const int port = lathe::test::free_port();
  const Words train{"train", "tiny.toml", "--checkpoint.interval=2", "--dist.timeout=30"};
  // Rank 0 fails when it writes a file of more than 8 kB.
  Words limited{"-c", "ulimit -f 16; exec \"$0\" \"$@\"",
                (lathe::test::binary_folder() / "lathe").string()};
  limited.insert(limited.end(), train.begin(), train.end());

  std::vector<Finished> done(2);
  {
    std::vector<std::jthread> threads;
    for (const int rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        done[rank] = lathe::test::run({.binary = rank == 0 ? "/bin/sh" : "lathe",
                                       .args = rank == 0 ? limited : train,
                                       .folder = f.path(),
                                       .environment = rank_of_2(rank, port),
                                       .apart = true});
      });
    }
  }
  INFO(done[0].err << done[1].err);
  CHECK(done[0].code == 6);
  CHECK(done[1].code == 7);
  CHECK_THAT(done[1].err, ContainsSubstring("rank 0 of 2 ") && ContainsSubstring("cannot write "));
  CHECK(done[1].seconds < 20);
}

TEST_CASE("processes that may use the same cores divide them among their threads", "[lost_ranks]") {
  const TempFolder f;
  lathe::test::make_tiny_run(f.path());
  const int port = lathe::test::free_port();
  Words train{"train", "tiny.toml", "--train.steps=2", "--train.threads=0"};
  std::vector<std::map<std::string, std::string>> environments;
  for (const int rank : {0, 1}) {
    environments.push_back(rank_of_2(rank, port));
    environments.back()["OMP_NUM_THREADS"] = "";
  }
  const auto done = start(f, {train, train}, environments);
  INFO(done[0].err << done[1].err);
  REQUIRE(done[0].code == 0);
  const int threads = std::max(1, usable_cores() / 2);
  CHECK_THAT(done[0].out, ContainsSubstring(", " + quantity(threads, "thread") + ","));
}

TEST_CASE("ranks that disagree, are duplicated or missing are errors before a run folder is made",
          "[lost_ranks]") {
  const TempFolder f;
  lathe::test::make_tiny_run(f.path());
  const int port = 21000 + static_cast<int>(getpid() % 20000);
  const Words train{"train", "tiny.toml", "--dist.timeout=20"},
      hurried{"train", "tiny.toml", "--dist.timeout=3"};
  Words other = train;
  other.emplace_back("--optim.lr=0.1");

  const auto config = start(f, {train, other}, {rank_of_2(0, port), rank_of_2(1, port)});
  INFO(config[0].err << config[1].err);
  CHECK(config[0].code == 2);
  CHECK(config[1].code == 2);
  CHECK_THAT(config[0].err, ContainsSubstring("rank 1") && ContainsSubstring("lr = 0.1"));

  Words tensor = train;
  tensor.emplace_back("--dist.tensor=2");
  const auto grids = start(f, {tensor, train}, {rank_of_2(0, port + 4), rank_of_2(1, port + 4)});
  for (const Finished& done : grids) {
    CHECK(done.code == 2);
    CHECK_THAT(done.err, ContainsSubstring("dist.tensor") && ContainsSubstring("rank 0") &&
                             ContainsSubstring("rank 1"));
    CHECK(done.seconds < 20);
  }

  const auto twice = start(f, {train, train}, {rank_of_2(0, port + 1), rank_of_2(0, port + 1)});
  INFO(twice[0].err << twice[1].err);
  CHECK((twice[0].code == 2 || twice[1].code == 2));

  const auto missing = start(f, {hurried}, {rank_of_2(0, port + 2)});
  CHECK(missing[0].code == 7);
  CHECK_THAT(missing[0].err, ContainsSubstring("rank 1 of 2 ") && ContainsSubstring("connect") &&
                                 ContainsSubstring("dist.timeout"));

  const auto no_master = start(f, {hurried}, {rank_of_2(1, port + 3)});
  CHECK(no_master[0].code == 7);
  CHECK(no_master[0].seconds < 3 + 2 + 2);
  CHECK_THAT(no_master[0].err, ContainsSubstring(str("127.0.0.1 port ", port + 3)) &&
                                   ContainsSubstring("MASTER_ADDR"));

  const Finished shares = train_on(f, 3, "tiny.toml", "x", {"--train.grad_accum=4"});
  CHECK(shares.code == 2);
  CHECK_THAT(shares.err,
             ContainsSubstring("1, 2 or 4") && ContainsSubstring("train.grad_accum = 6"));
  CHECK(!fs::exists(f / "runs"));
}

}  // namespace
