// Tests that memory.budget recomputes as few blocks as the budget requires.
#include <string>
#include <vector>

#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "train/analysis/forecast.h"
#include "train/analysis/memory_budget.h"

namespace {

using namespace lathe;
using lathe::test::Finished;
using lathe::test::lathe_in;
using lathe::test::TempFolder;
using lathe::test::train_on;
using lathe::test::with_keys;
using Words = std::vector<std::string>;

/// The memory besides tensors that the tests in this process assume. The actual value varies by
/// some MB between forecasts.
constexpr int64_t program_bytes = 100'000'000;

/// Plans and trains a model of eight blocks, each with about 10 MB of activations.
class BudgetedRuns {
 public:
  BudgetedRuns() {
    lathe::test::make_data(folder_);
    lathe::test::write_config(
        folder_, {"gpt", "text", "n_layer = 8\nn_head = 2\nn_embd = 64\nblock_size = 128\n"});
  }
  const TempFolder& folder() const { return folder_; }

  /// Returns the config with the keys of `more`.
  LoadedConfig load(const Words& more) const {
    Overrides keys{{"data.dir", (folder_ / "text").string()}};
    for (const std::string& key : with_keys(keys_, more)) {
      const size_t end = key.find('=');
      keys.emplace_back(key.substr(2, end - 2), key.substr(end + 1));
    }
    return load_config((folder_ / "kind.toml").string(), keys);
  }
  /// Returns the resident bytes that a run with this value of memory.recompute would take in this
  /// process.
  int64_t needed(const std::string& policy) const {
    return dry_step(load({"--memory.recompute=" + policy})).resident() + program_bytes;
  }
  /// Returns the arguments of `lathe plan` with the keys of `more`.
  Words plan(const Words& more) const {
    Words words{"plan", "kind.toml"};
    for (const std::string& key : with_keys(keys_, more)) words.push_back(key);
    return words;
  }
  Finished train(const std::string& name, const Words& more) const {
    return train_on(folder_, 1, "kind.toml", name, with_keys(keys_, more));
  }

 private:
  TempFolder folder_;
  Words keys_{"--train.steps=2",         "--train.batch_size=8",    "--train.grad_accum=1",
              "--train.eval_interval=0", "--checkpoint.interval=2", "--train.log_interval=1"};
};

TEST_CASE("memory.budget recomputes as few blocks as the budget requires",
          "[memory_budget][process_memory]") {
  const BudgetedRuns runs;
  const int64_t all = runs.needed("none"), least = runs.needed("blocks");
  CHECK(all - least > 20e6);

  // For a medium budget, recomputing parts of all blocks is fastest.
  const int64_t middle = (all + least) / 2;
  const BudgetedConfig half = apply_memory_budget(
      runs.load({"--memory.budget=" + std::to_string(middle)}), 1, program_bytes);
  CHECK_THAT(half.text, ContainsSubstring("\"selective\""));
  CHECK(half.loaded.config.memory.recompute == "selective");
  CHECK(runs.needed("selective") <= middle);

  // For a larger budget, only some blocks are recomputed. With one recomputed block fewer, the run
  // would not fit.
  const int64_t budget = all - (all - least) / 4;
  const BudgetedConfig some = apply_memory_budget(
      runs.load({"--memory.budget=" + std::to_string(budget)}), 1, program_bytes);
  CHECK_THAT(some.text, ContainsSubstring("of 8 blocks"));
  const std::string chosen = some.loaded.config.memory.recompute;
  REQUIRE(chosen.starts_with("blocks.0-"));
  const int last = std::stoi(chosen.substr(9));
  CHECK(last > 0);
  CHECK(last < 7);
  CHECK(runs.needed(chosen) <= budget);
  CHECK(runs.needed("blocks.0-" + std::to_string(last - 1)) > budget);
}

TEST_CASE("a memory budget changes no bits of a run, and the run resumes", "[memory_budget]") {
  const BudgetedRuns runs;
  REQUIRE(runs.train("all", {}).code == 0);

  const auto key = [](int mb) { return Words{"--memory.budget=" + std::to_string(mb) + "MB"}; };
  // Returns the value of memory.recompute that Lathe chooses for a budget, or "" if the budget is
  // not enough.
  const auto choice = [&](int mb) {
    const std::string name = "probe-" + std::to_string(mb);
    if (runs.train(name, key(mb)).code != 0) return std::string();
    const std::string text = lathe::test::slurp(runs.folder() / "runs" / name / "config.toml");
    const size_t at = text.find("\nrecompute = ");
    return text.substr(at, text.find('#', at) - at);
  };

  // Find the widest range of budgets with the same choice, other than no recomputation, and take
  // its middle. The memory that a process needs besides tensors varies by some MB. This variation
  // must not change the choice.
  int begin = 90, widest = 0, middle = 0;
  std::string before;
  for (int mb = begin; mb < 200; mb += 2) {
    const std::string now = choice(mb);
    if (now != before) begin = mb;
    before = now;
    if (now.empty() || now.find("\"none\"") != std::string::npos || mb - begin < widest) continue;
    widest = mb - begin;
    middle = (begin + mb) / 2;
  }
  const std::string budget = key(middle)[0];
  INFO(budget);
  REQUIRE(runs.train("some", {budget}).code == 0);
  CHECK(
      lathe::test::slurp(runs.folder() / "runs/some/config.toml").find("\nrecompute = \"none\"") ==
      std::string::npos);
  CHECK((lathe::test::results_of(runs.folder() / "runs/some", "step-00000002") ==
         lathe::test::results_of(runs.folder() / "runs/all", "step-00000002")));

  // The same command resumes the run. Nothing is left to do, and no key has changed.
  const Finished again = runs.train("some", {budget});
  INFO(again.out);
  CHECK(again.code == 0);
  CHECK(again.out.find(" -> ") == std::string::npos);

  // The run also resumes with the config that it recorded.
  const Finished recorded = lathe_in(runs.folder(), {"train", "runs/some/config.toml"});
  INFO(recorded.err);
  CHECK(recorded.code == 0);

  // A budget above what the run needs recomputes no blocks.
  const Finished ample = runs.train("ample", {"--memory.budget=4GB"});
  CHECK(ample.code == 0);
  CHECK_THAT(lathe::test::slurp(runs.folder() / "runs/ample/config.toml"),
             ContainsSubstring("recompute = \"none\""));
}

TEST_CASE("a budget that is too small, or not an amount, is refused before anything is created",
          "[memory_budget]") {
  const BudgetedRuns runs;
  const Finished little = runs.train("little", {"--memory.budget=40MB"});
  CHECK(little.code == 9);
  CHECK_THAT(little.err, ContainsSubstring("memory.budget") && ContainsSubstring("--fit 40MB"));
  CHECK(runs.train("words", {"--memory.budget=much"}).code == 2);
  const Finished both = runs.train("both", {"--memory.budget=4GB", "--memory.recompute=blocks"});
  CHECK(both.code == 2);
  CHECK_THAT(both.err, ContainsSubstring("memory.recompute"));
  for (const char* wrong : {"blocks.", "blocks.3-1", "blocks.0-7x"})
    CHECK(runs.train("range", {std::string("--memory.recompute=") + wrong}).code == 2);

  // A range of recomputed blocks must be within the model's blocks.
  for (const char* range : {"blocks.8-9", "blocks.6-8"}) {
    const Finished beyond = runs.train("beyond", {std::string("--memory.recompute=") + range});
    CHECK(beyond.code == 2);
    CHECK_THAT(beyond.err, ContainsSubstring(range) && ContainsSubstring("8 blocks"));
  }
  CHECK(!fs::exists(runs.folder() / "runs"));
}

TEST_CASE("plan --chart measures the program once, and plan --ranks applies a budget",
          "[memory_budget]") {
  const BudgetedRuns runs;
  // Run each plan in a separate process, because the memory of the process counts.
  const auto plan = [&](const Words& more) {
    return lathe::test::run({.binary = "lathe",
                             .args = runs.plan(more),
                             .folder = runs.folder().path(),
                             .environment = {},
                             .apart = true});
  };
  // Find the smallest budget that plan accepts, to within a twentieth.
  int64_t least = 0;
  for (int64_t megabytes = 100; megabytes < 4000 && least == 0; megabytes += megabytes / 20) {
    if (plan({str("--memory.budget=", megabytes, "MB")}).code == 0) least = megabytes;
  }
  REQUIRE(least > 0);
  const Finished chart = plan({str("--chart=memory.budget=", least + least / 20, "MB")});
  INFO(chart.out << chart.err);
  CHECK(chart.code == 0);

  const Finished ranks = plan({"--ranks=2", "--memory.budget=4GB", "--train.grad_accum=2"});
  CHECK(ranks.code == 0);
  CHECK_THAT(ranks.out,
             ContainsSubstring("no block is recomputed") && ContainsSubstring("per process"));
}

TEST_CASE(
    "several processes choose the same recomputation for a budget, and change no bits of the run",
    "[memory_budget]") {
  const BudgetedRuns runs;
  const auto train = [&](int ranks, const std::string& name, const Words& more) {
    const Words shared{"--train.steps=2",         "--train.grad_accum=2",
                       "--train.batch_size=8",    "--dist.timeout=60",
                       "--train.eval_interval=0", "--checkpoint.interval=2",
                       "--train.log_interval=1"};
    return train_on(runs.folder(), ranks, "kind.toml", name, with_keys(shared, more));
  };
  REQUIRE(train(1, "alone", {}).code == 0);

  // Try ascending budgets until one is enough. This budget is so small that blocks are recomputed.
  // It is not computed here, since processes differ a little in the memory that they need besides
  // tensors.
  int budget = 100;
  Finished done = train(2, "ranks", {"--memory.budget=100MB"});
  CHECK(done.code == 9);
  while (done.code == 9 && budget < 1000) {
    budget += 5;
    done = train(2, "ranks", {"--memory.budget=" + std::to_string(budget) + "MB"});
  }
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  CHECK_THAT(done.out, ContainsSubstring("recomputed") && ContainsSubstring("per process"));
  CHECK(lathe::test::slurp(runs.folder() / "runs/ranks/config.toml").find("recompute = \"none\"") ==
        std::string::npos);
  CHECK((lathe::test::results_of(runs.folder() / "runs/ranks", "step-00000002") ==
         lathe::test::results_of(runs.folder() / "runs/alone", "step-00000002")));
}

}  // namespace
