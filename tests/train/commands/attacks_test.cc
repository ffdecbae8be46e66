// Tests attacks on every command of the table of commands: limits on file size, open files and
// memory, signals in the first 50 ms, and two processes on one target. The first test fails if a
// command has no row here.
#include <algorithm>
#include <array>
#include <csignal>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/commands/commands.h"

namespace {

using namespace lathe;
using lathe::test::Finished;
using lathe::test::Invocation;
using lathe::test::TempFolder;
using Words = std::vector<std::string>;

/// A command whose arguments name files in the folder of cases().
struct Attacked {
  Words words;
  std::string target{};  ///< the path that the command writes, and that another process may
                         ///< write at the same time; empty: none
};

/// Returns one or more rows for each command.
const std::vector<Attacked>& attacked_commands() {
  static const std::vector<Attacked> rows{
      {{"train", "c.toml", "--train.out_dir=runs/new"}, "runs/new"},
      {{"train", "c.toml", "--adapters.rank=2", "--adapters.base=runs/c",
        "--train.out_dir=runs/new"},
       "runs/new"},
      {{"launch", "-n", "2", "--", "train", "c.toml", "--train.grad_accum=2", "--dist.timeout=20",
        "--train.out_dir=runs/new"},
       "runs/new"},
      {{"plan", "c.toml"}},
      {{"prepare", "text.txt", "--out", "new", "--tokenizer", "bpe"}, "new"},
      {{"prepare", "text.txt", "--out", "new", "--tokenizer", "char"}, "new"},
      {{"prepare", "--source", "a=text.txt:0.5", "--source", "b=other.txt:0.5", "--out", "new"},
       "new"},
      {{"prepare", "table.csv", "--out", "new"}, "new"},
      {{"tokenizer", "train", "text.txt", "--out", "new", "--vocab-size", "300"}, "new"},
      {{"tokenizer", "inspect", "bpe"}},
      {{"eval", "runs/c"}},
      {{"predict", "runs/table", "table.csv", "--out", "new.csv"}, "new.csv"},
      {{"generate", "runs/c", "--prompt", "the", "--tokens", "4"}},
      {{"chat", "runs/c"}},
      {{"serve", "runs/table"}},
      {{"gradients", "runs/c", "--batches", "1"}},
      {{"replay", "runs/c"}},
      {{"merge", "runs/adapted", "--out", "runs/new"}, "runs/new"},
      {{"import", "hf", "--out", "runs/new"}, "runs/new"},
      {{"export", "runs/c", "--out", "new"}, "new"},
      {{"export", "runs/c", "--format", "gguf", "--out", "new"}, "new"},
      {{"inspect", "runs/c"}},
      {{"verify", "runs/c"}},
      {{"runs", "runs"}},
      {{"compare", "runs/c", "runs/adapted"}},
      {{"report", "runs/c", "--out", "new.html"}, "new.html"},
      {{"watch", "runs/c"}},
      {{"sweep", "c.toml", "--optim.lr=1e-3,2e-3", "--out", "new"}, "new"},
      {{"bench", "step", "c.toml", "--train.steps=3"}},
      {{"profile", "c.toml", "--steps", "1:2", "--trace", "new.json"}, "new.json"},
      {{"find", "batch", "c.toml", "--memory", "300MB", "--rounds", "2"}},
      {{"config", "show", "c.toml"}},
  };
  return rows;
}

std::string text_of(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += " " + word;
  return text;
}

/// Creates the inputs of the commands: texts, a tokenizer, data, a config, runs and an exported
/// model.
class Cases {
 public:
  Cases() : folder_(lathe::test::fast_folder()) {
    lathe::test::write_file(folder_ / "text.txt", lathe::test::sample_text(12000));
    lathe::test::write_file(folder_ / "other.txt", lathe::test::sample_text(9000).substr(500));

    std::string table;
    for (int i = 0; i < 60; ++i)
      table += std::to_string(i * 37 % 11) + "," + std::to_string(i * 5 % 7) + "," +
               std::to_string(i % 3) + "\n";
    lathe::test::write_file(folder_ / "table.csv", table);

    lathe::test::write_file(
        folder_ / "c.toml",
        "[model]\nn_layer = 1\nn_head = 2\nn_embd = 16\nblock_size = 16\nvocab_size = 512\n"
        "[data]\ndir = \"data\"\n[schedule]\nwarmup_steps = 1\n"
        "[train]\nsteps = 6\nbatch_size = 2\neval_interval = 3\neval_batches = 2\nlog_interval = "
        "1\n"
        "threads = 1\n[checkpoint]\ninterval = 3\n");
    make({"tokenizer", "train", "text.txt", "--out", "bpe", "--vocab-size", "300"});
    make({"prepare", "text.txt", "--out", "data", "--tokenizer", "bpe"});
    make({"train", "c.toml"});
    make({"train", "c.toml", "--adapters.rank=2", "--adapters.base=runs/c",
          "--train.out_dir=runs/adapted"});

    // Also train a model on a table of examples.
    make({"prepare", "table.csv", "--out", "table"});
    lathe::test::write_file(folder_ / "table.toml",
                            "[model]\nkind = \"mlp\"\nn_hidden = 8\n[data]\ndir = \"table\"\n"
                            "[schedule]\nwarmup_steps = 1\n[train]\nsteps = 3\nbatch_size = 4\n"
                            "eval_interval = 3\nthreads = 1\n");
    make({"train", "table.toml"});

    make({"export", "runs/c", "--out", "hf"});
    make({"profile", "c.toml", "--steps",
          "1:2"});  // caches the measured matmul ceiling for the copies of the folder
  }

  const fs::path& path() const { return folder_.path(); }

 private:
  void make(const Words& words) {
    const Finished done = lathe::test::lathe_in(folder_, words);
    INFO(text_of(words) << ": " << done.err);
    REQUIRE(done.code == 0);
  }

  TempFolder folder_;
};
const Cases& cases() {
  static const Cases made;
  return made;
}

/// A copy of the folder of cases() for one attack.
class Copy {
 public:
  Copy() : folder_(lathe::test::fast_folder()) {
    fs::copy(cases().path(), folder_.path(), fs::copy_options::recursive);
  }
  const TempFolder& folder() const { return folder_; }

  Finished run(const Words& words) const { return lathe::test::lathe_in(folder_, words); }
  /// Runs lathe with the faults that these environment variables request
  /// (tests/support/faults/main.cc).
  Finished run_with(const std::map<std::string, std::string>& faults, const Words& words) const {
    return lathe::test::run(
        {.binary = "lathe_faults", .args = words, .folder = folder_.path(), .environment = faults});
  }

 private:
  TempFolder folder_;
};

/// Returns whether a command under attack may end with this exit code. docs/reference/exit-codes.md
/// documents these codes; 1 (internal error), 10 (no_fit) and 130 (second SIGINT) are not allowed
/// here.
bool is_documented(int code) {
  static const std::set<int> codes{0, 2, 3, 4, 5, 6, 7, 8, 9, 75};
  return codes.contains(code);
}

/// Returns whether a command succeeded or printed a message. The message must not contain text of
/// the C++ runtime or LibTorch.
bool is_clean(const Finished& done) {
  for (const char* raw :
       {"internal", "terminate called", "INTERNAL ASSERT", "Exception raised", "std::", "c10::"}) {
    if (done.err.find(raw) != std::string::npos) return false;
  }
  return done.code == 0 || !done.err.empty() || !done.out.empty();
}

/// Returns the exit code of a row's command without an attack.
int expected_code(const Attacked& row) {
  static std::map<Words, int> codes;
  const auto [found, is_new] = codes.try_emplace(row.words, 0);
  if (is_new) found->second = Copy().run(row.words).code;
  return found->second;
}

TEST_CASE("every command has a row among the attacked commands", "[attacks]") {
  std::set<std::string> named;
  for (const Attacked& row : attacked_commands()) named.insert(row.words[0]);
  for (const Command& command : commands()) {
    INFO(command.name);
    CHECK(named.contains(command.name));
  }
}

TEST_CASE("a command that exceeds a limit prints a message, and works afterwards without the limit",
          "[attacks]") {
  for (const Attacked& row : attacked_commands()) {
    const int expected = expected_code(row);
    for (const char* limit :
         {"file 0", "file 9000", "files 6", "heap 0", "heap 9000", "memory 1", "memory 16"}) {
      INFO("limit of " << limit << ":" << text_of(row.words));
      const Copy copy;
      const Finished attacked = copy.run_with({{"LATHE_TEST_LIMIT", limit}}, row.words);
      INFO("exit code " << attacked.code << ": " << attacked.err << attacked.out);
      CHECK(is_documented(attacked.code));
      CHECK(is_clean(attacked));
      if (attacked.code == expected) continue;

      const Finished again = copy.run(row.words);
      INFO("again: exit code " << again.code << ": " << again.err);
      CHECK(again.code == expected);
    }
  }
}

TEST_CASE("a command whose threads can't be started prints a message", "[attacks]") {
  for (const Attacked& row : attacked_commands()) {
    for (const char* threads : {"1", "2"}) {
      INFO("at most " << threads << " threads:" << text_of(row.words));
      const Finished attacked = Copy().run_with({{"LATHE_TEST_THREADS", threads}}, row.words);
      INFO("exit code " << attacked.code << ": " << attacked.err);
      if (attacked.code == 77) {
        WARN("threads can't be limited here");
        return;
      }
      CHECK(is_documented(attacked.code));
      CHECK(is_clean(attacked));
    }
  }
}

TEST_CASE(
    "a command that gets a signal in its first 50 ms ends by the signal or with a documented code, "
    "and loses nothing",
    "[attacks]") {
  struct Moment {
    int signal;
    double seconds;
  };
  for (const Attacked& row : attacked_commands()) {
    const int expected = expected_code(row);
    for (const Moment& moment : {Moment{SIGINT, 0},
                                 {SIGTERM, 0.001},
                                 {SIGHUP, 0.003},
                                 {SIGINT, 0.006},
                                 {SIGTERM, 0.012},
                                 {SIGINT, 0.025},
                                 {SIGTERM, 0.05}}) {
      INFO("signal " << moment.signal << " after " << moment.seconds
                     << " s:" << text_of(row.words));
      const Copy copy;
      const Finished attacked = lathe::test::run({.binary = "lathe",
                                                  .args = row.words,
                                                  .folder = copy.folder().path(),
                                                  .environment = {},
                                                  .signal = moment.signal,
                                                  .signal_after_s = moment.seconds});
      INFO("exit code " << attacked.code << ": " << attacked.err);
      const bool by_signal = attacked.code == 128 + moment.signal;
      CHECK((by_signal || is_documented(attacked.code)));
      CHECK((by_signal || is_clean(attacked)));
      if (attacked.code == expected) continue;

      const Finished again = copy.run(row.words);
      INFO("again: exit code " << again.code << ": " << again.err);
      CHECK(again.code == expected);
    }
  }
}

TEST_CASE(
    "of two processes on one target, one writes it, the other ends cleanly, and the result is "
    "intact",
    "[attacks]") {
  for (const Attacked& row : attacked_commands()) {
    if (row.target.empty()) continue;
    const Copy alone;
    const int expected = alone.run(row.words).code;
    for (int trial = 0; trial < 2; ++trial) {
      INFO("two at a time:" << text_of(row.words));
      const Copy copy;
      std::array<Finished, 2> both;
      {
        std::thread second([&] { both[1] = copy.run(row.words); });
        both[0] = copy.run(row.words);
        second.join();
      }
      INFO("exit codes " << both[0].code << ", " << both[1].code << ": " << both[0].err
                         << both[1].err);
      CHECK((both[0].code == expected || both[1].code == expected));
      for (const Finished& one : both) {
        CHECK(is_documented(one.code));
        CHECK(is_clean(one));
      }

      const fs::path target = copy.folder() / row.target;
      REQUIRE(fs::exists(target));
      if (!fs::is_directory(target)) continue;
      CHECK(lathe::test::names(target) == lathe::test::names(alone.folder() / row.target));
      if (fs::exists(target / "manifest.json") || fs::exists(target / "checkpoints"))
        CHECK(copy.run({"verify", row.target}).code == 0);
    }
  }
}

}  // namespace
