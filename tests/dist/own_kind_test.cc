// Tests of a model kind that a program adds: its layer_cuts() lets it train with dist.tensor and
// dist.sequence_parallel, and divides_positions with dist.context.
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "autograd/ops.h"
#include "nn/layers.h"
#include "nn/models/model.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "train/commands/cli.h"

namespace {

using namespace lathe;
using Words = std::vector<std::string>;

struct GatedConfig {
  LATHE_FIELD(int64_t, block_size, 12, "Context length, in tokens.", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, vocab_size, 0, "Size of the vocabulary.", between(0, 1000).fixed())
  LATHE_FIELD(std::string, fault, "none", "The fault of layer_cuts().",
              one_of({"none", "layer", "dim", "units"}).fixed())
};

/// Computes x + down(sigmoid(gate(norm(x))) up(norm(x))).
struct GatedBlock {
  RMSNorm norm{32};
  Linear gate{32, 48, /*with_bias=*/true}, up{32, 48, /*with_bias=*/false};
  Linear down{48, 32, /*with_bias=*/true};

  Variable operator()(const Variable& x) const {
    const Variable h = norm(x);
    return x + down(sigmoid(gate(h)) * up(h));
  }
  void visit(Visit& v) {
    v("norm", norm);
    v("gate", gate);
    v("up", up);
    v("down", down);
  }
};

/// A language model whose positions do not depend on each other.
struct Gated {
  Embedding tokens;
  std::vector<GatedBlock> blocks;
  Linear head;

  explicit Gated(const GatedConfig& c)
      : tokens(c.vocab_size, 32),
        blocks(2),
        head(32, c.vocab_size, /*with_bias=*/false, Role::head) {}
  Variable features(const at::Tensor& ids) const { return run_blocks(blocks, tokens(ids)); }
  const Variable& head_weight() const { return head.weight; }
  Variable operator()(const at::Tensor& ids) const { return head(features(ids)); }
  void visit(Visit& v) {
    v("tokens", tokens);
    v.blocks("blocks", blocks);
    v("head", head);
  }

  static constexpr bool divides_positions = true;
  static std::vector<LayerCut> layer_cuts(const GatedConfig& c) {
    std::vector<LayerCut> cuts{{.layers = "tokens"},
                               {.layers = "blocks.*.gate"},
                               {.layers = "blocks.*.up"},
                               {.layers = "blocks.*.down", .dim = 1},
                               {.layers = "head"}};
    if (c.fault == "layer") cuts.push_back({.layers = "blocks.*.side"});
    if (c.fault == "dim") cuts[1].dim = 2;
    if (c.fault == "units") cuts[1] = {.layers = "blocks.*.gate", .units = 3, .unit = "thirds"};
    return cuts;
  }
};

/// Runs `lathe train` on the config gated.toml of `folder` in this process, for the run
/// `folder`/runs/`name`. Returns the exit code.
int train_gated(const fs::path& folder, const std::string& name, const Words& keys) {
  if (find_model_kind("gated") == nullptr)
    add_model_kind(model_kind<Gated, GatedConfig>("gated", "a model with gates"));
  Words words{"lathe", "train", (folder / "gated.toml").string(),
              "--train.out_dir=" + (folder / "runs" / name).string()};
  words.insert(words.end(), keys.begin(), keys.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  return run_cli(static_cast<int>(arguments.size()), arguments.data());
}

/// Returns the folder, the name and the keys of the run that the next hidden test case trains. They
/// are separated by spaces in the environment variable LATHE_TEST_GATED.
Words words_of_run() {
  std::istringstream in(std::getenv("LATHE_TEST_GATED"));
  return {std::istream_iterator<std::string>(in), {}};
}

TEST_CASE("trains the gated model on this rank", "[.rank_of_own_kind]") {
  const Words words = words_of_run();
  REQUIRE(words.size() >= 2);
  CHECK(train_gated(words[0], words[1], {words.begin() + 2, words.end()}) == 0);
}

void make_gated_run(const lathe::test::TempFolder& f) {
  lathe::test::make_data(f);
  lathe::test::write_file(
      f / "gated.toml", "[model]\nkind = \"gated\"\n[data]\ndir = \"" + (f / "text").string() +
                            "\"\n[train]\nsteps = 50\nbatch_size = 4\ngrad_accum = 2\nthreads = 1\n"
                            "log_interval = 1\neval_interval = 25\neval_batches = 2\n"
                            "[checkpoint]\ninterval = 50\n[dist]\ntimeout = 60\n");
}

/// Trains on `ranks` processes. Returns how each of them ended.
std::vector<lathe::test::Finished> train_on_ranks(const lathe::test::TempFolder& f, int ranks,
                                                  const std::string& name, const Words& keys) {
  std::string words = f.path().string() + " " + name;
  for (const std::string& key : keys) words += " " + key;
  return lathe::test::run_on_ranks(ranks, "[.rank_of_own_kind]", {{"LATHE_TEST_GATED", words}});
}

TEST_CASE("a kind with layer_cuts() and divides_positions trains on every layout of ranks",
          "[own_kind]") {
  const lathe::test::TempFolder f;
  make_gated_run(f);
  const auto train = [&](int ranks, const std::string& name, const Words& keys) {
    for (const auto& done : train_on_ranks(f, ranks, name, keys)) {
      INFO(name << ": " << done.out << done.err);
      REQUIRE(done.code == 0);
    }
  };
  train(1, "one", {});
  const std::vector<double> losses = lathe::test::numbers_of(f / "runs/one", "loss");
  REQUIRE(losses.size() == 50);
  CHECK(losses.back() < 0.9 * losses.front());

  const std::vector<Words> layouts{{"--dist.tensor=2"},
                                   {"--dist.tensor=2", "--dist.sequence_parallel=true"},
                                   {"--dist.context=2"},
                                   {"--dist.pipeline=2"}};
  for (const Words& keys : layouts) {
    const std::string name = keys.back().substr(2);
    INFO(name);
    train(2, name, keys);
    CHECK(lathe::test::difference_between(f / "runs/one", f / ("runs/" + name), "loss") < 1e-6);
    train(1, name, {"--train.steps=52"});  // loads the complete tensors
  }
}

TEST_CASE("faults of layer_cuts() end a run before its first step, and are named", "[own_kind]") {
  const lathe::test::TempFolder f;
  make_gated_run(f);
  const std::vector<std::pair<std::string, std::string>> faults{
      {"layer", "blocks.*.side"}, {"dim", "dim 2"}, {"units", "3 thirds"}};
  for (const auto& [fault, named] : faults) {
    INFO(fault);
    std::string said;
    for (const auto& done :
         train_on_ranks(f, 2, fault, {"--dist.tensor=2", "--model.fault=" + fault})) {
      CHECK(done.code != 0);
      said += done.err;
    }
    CHECK_THAT(said, ContainsSubstring(named));
    CHECK(!fs::exists(f / ("runs/" + fault + "/metrics.jsonl")));
  }
}

}  // namespace
