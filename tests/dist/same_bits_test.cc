// Tests that a run on several processes is bitwise equal to a run on one process if the number of
// micro-batches of each process is a power of two, or if dist.shard divides the gradients.
// Otherwise the metrics are equal up to rounding. The table of kinds, precisions, optimizers and
// dist.shard is in same_bits_table_test.cc.
#include <string>
#include <vector>

#include "core/mode.h"
#include "data/loader.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "train/session/passes.h"
#include "train/step/stepper.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

const Kind small_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 2\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};

const Words same_bits_keys{"--train.steps=6",        "--train.grad_accum=4",
                           "--train.batch_size=4",   "--train.eval_interval=3",
                           "--train.eval_batches=3", "--checkpoint.interval=6",
                           "--dist.timeout=60"};

TEST_CASE("train.sum_order = sequence adds micro-batches one after another, on one process",
          "[same_bits]") {
  const TempFolder f;
  lathe::test::make_tiny_run(f.path());
  const RunData data =
      RunData::open(load_config((f / "tiny.toml").string(), {{"train.grad_accum", "5"},
                                                             {"train.sum_order", "sequence"},
                                                             {"data.dir", (f / "data").string()}}));
  LoadedConfig loaded = data.loaded;

  // The oracle lets backward() accumulate into existing gradients.
  Session expected = Session::make(data);
  Loader batches(*data.data, batch_sizes(loaded.config), 1, 0, loaded.config.data, expected.device);
  zero_grad(*expected.model);
  at::Tensor loss;
  const auto divisor = static_cast<double>(5 * units_of_micro_batch(loaded.config));
  for (int64_t micro = 0; micro < 5; ++micro) {
    const at::Tensor one =
        run_micro_batch(expected, batches.next(), divisor, random_of(loaded.config, 0, micro));
    loss = loss.defined() ? loss + one : one;
  }

  for (const char* order : {"sequence", "tree"}) {
    loaded.config.train.sum_order = order;
    Session s = Session::make(loaded, *data.task, data.sizes);
    Loader loader(*data.data, batch_sizes(loaded.config), 1, 0, loaded.config.data, s.device);
    const StepResult result = run_step(s, loader, 0, /*keep_gradients=*/true);

    // Five float32 gradients that are added in another order differ in some last bits.
    bool is_equal = result.loss.equal(loss);
    for (size_t i = 0; i < s.params.size(); ++i) {
      is_equal =
          is_equal && s.params[i].parameter.grad().equal(expected.params[i].parameter.grad());
    }
    CHECK(is_equal == (std::string(order) == "sequence"));
  }

  const Finished refused =
      train_on(f, 2, "tiny.toml", "two", {"--train.grad_accum=4", "--train.sum_order=sequence"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, ContainsSubstring("train.sum_order"));
}

TEST_CASE("train.early_stop ends all processes after the same step", "[same_bits]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, small_gpt);
  for (const int ranks : {1, 2}) {
    const Finished done = train_on(
        f, ranks, "kind.toml", std::to_string(ranks),
        {"--train.steps=40", "--train.grad_accum=2", "--train.batch_size=4", "--train.early_stop=2",
         "--train.eval_interval=2", "--optim.lr=0.5", "--dist.timeout=60"});
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
    CHECK(done.out.find("stopped early") != std::string::npos);
  }
  const auto last = [&](const std::string& run) {
    return *lathe::test::names(f / ("runs/" + run + "/checkpoints")).rbegin();
  };
  CHECK(last("1") < "step-00000040");
  CHECK((results_of(f / "runs/1", last("1")) == results_of(f / "runs/2", last("1"))));
}

TEST_CASE("a run is bitwise the same on 8 processes and for any bucket size", "[same_bits]") {
  RunsOnRanks runs(same_bits_keys, "step-00000006");
  const Words keys{"--train.grad_accum=8", "--train.batch_size=2"};
  const std::string alone = runs.results(1, small_gpt, keys);
  CHECK((runs.results(8, small_gpt, keys) == alone));
  CHECK((runs.results(2, small_gpt, with_keys(keys, {"--dist.bucket_mb=0.001"})) == alone));
  // The comparison must notice a wrong seed.
  CHECK((runs.results(1, small_gpt, with_keys(keys, {"--train.seed=7"})) != alone));
}

TEST_CASE(
    "runs are bitwise equal on 1 process, on 3 with two micro-batches each, and on 2 with three "
    "each if they shard gradients",
    "[same_bits]") {
  RunsOnRanks runs(same_bits_keys, "step-00000006");
  const Words keys{"--train.grad_accum=6", "--train.batch_size=2"};
  const std::string alone = runs.results(1, small_gpt, keys);
  const auto sharded = [&](int ranks, const std::string& shard) {
    return runs.results(ranks, small_gpt,
                        with_keys(keys, {"--dist.shard=" + shard, "--memory.recompute=blocks"}));
  };
  CHECK((runs.results(3, small_gpt, keys) == alone));
  CHECK((sharded(3, "optimizer") == alone));

  // With these values of dist.shard, each process has every second micro-batch, so the bits are the
  // same for any number of micro-batches.
  CHECK((sharded(2, "gradients") == alone));
  CHECK((sharded(2, "parameters") == alone));
}

TEST_CASE("with train.spike_sigma, all processes skip the same updates", "[same_bits]") {
  RunsOnRanks runs(with_keys(same_bits_keys, {"--train.steps=60", "--checkpoint.interval=60",
                                              "--train.eval_interval=0", "--optim.kind=sgd",
                                              "--train.spike_sigma=0.01", "--train.batch_size=1"}),
                   "step-00000060");
  const Kind& numbers = lathe::test::kinds[1];
  const fs::path alone = runs.train(1, numbers, {});
  // At least one update is skipped. The first 50 losses never count as spikes.
  CHECK(numbers_of(alone, "updates").back() < 60);

  for (const int ranks : {2, 4}) {
    INFO(ranks << " processes");
    CHECK((runs.results(ranks, numbers, {}) == results_of(alone, "step-00000060")));
  }
}

/// The config of runs whose processes have three micro-batches each.
struct ThreeEach {
  const Kind& kind;
  Words keys;
};

// These keys have the defaults of optim.kind and optim.lr, without warmup. Relative differences are
// at most 3.0e-7 for a loss, 2.9e-7 for a gradient norm and 2.5e-7 for an evaluation, measured on
// an Intel Xeon with AVX-512 (2026-11-28). At the learning rate of write_config(), which is ten
// times as high, the Llama's differences are up to 2.7e-6 for a loss and 2.2e-5 for a gradient
// norm.
const Words fifty_steps{"--train.steps=50",         "--train.batch_size=2",   "--optim.lr=1e-3",
                        "--train.eval_interval=10", "--train.eval_batches=3", "--dist.timeout=60",
                        "--checkpoint.interval=50"};

/// Checks that repeated runs of 50 steps on `ranks` processes are bitwise equal, and that their
/// metrics differ by at most a relative 1e-6 from a run on one process.
void check_within_rounding(int ranks, const std::vector<ThreeEach>& cells) {
  const std::string last = "step-00000050";
  RunsOnRanks runs(with_keys(fifty_steps, {"--train.grad_accum=" + std::to_string(3 * ranks)}),
                   last);
  for (const ThreeEach& cell : cells) {
    const fs::path alone = runs.train(1, cell.kind, cell.keys),
                   shared = runs.train(ranks, cell.kind, cell.keys);
    for (const char* name :
         {"loss", "grad_norm", cell.kind.data == "numbers" ? "mse" : "val_loss"}) {
      INFO(cell.kind.name << " on " << ranks << " processes: " << name);
      CHECK(difference_between(alone, shared, name) <= 1e-6);
    }

    const std::string results = results_of(shared, last);
    INFO(cell.kind.name << " on " << ranks << " processes");
    CHECK((runs.results(ranks, cell.kind, cell.keys) == results));
    // The comparison notices that one process adds in another order.
    CHECK((results_of(alone, last) != results));
  }
}

TEST_CASE(
    "3 processes with three micro-batches each have the metrics of one process up to "
    "rounding, and the same bits every time",
    "[same_bits]") {
  const auto& kinds = lathe::test::kinds;
  check_within_rounding(3, {{small_gpt, {}},
                            {kinds[3], {"--dist.shard=optimizer"}},
                            {kinds[1], {"--dist.shard=gradients"}}});
}

TEST_CASE(
    "2 processes with three micro-batches each have the metrics of one process up to "
    "rounding, and the same bits every time",
    "[same_bits]") {
  const auto& kinds = lathe::test::kinds;
  // The mlp with batch norm is trained by sgd, not Adam. Its biases come before the norms, so the
  // gradients of the biases consist of rounding errors only. Adam would turn these errors into
  // steps as large as the learning rate. The running means lag behind the biases, so evaluations
  // would differ by 7e-5.
  check_within_rounding(2, {{small_gpt, {}},
                            {kinds[3], {"--dist.shard=optimizer"}},
                            {kinds[1], {}},
                            {kinds[4], {}},
                            {kinds[2], {}},
                            {kinds[0], {"--optim.kind=sgd", "--train.batch_size=8"}}});
}

TEST_CASE(
    "a run stopped on 4 processes resumes on 1 and on 2, with the bits of a run that never "
    "stopped",
    "[same_bits]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, small_gpt);
  const Words keys{"--train.steps=9", "--train.grad_accum=4", "--checkpoint.interval=100",
                   "--dist.timeout=60"};
  const auto with = [&](const std::string& more) { return with_keys(keys, {more}); };
  REQUIRE(train_on(f, 1, "kind.toml", "whole", keys).code == 0);
  REQUIRE(train_on(f, 4, "kind.toml", "moved", with("--train.pause_at=3")).code == 75);
  REQUIRE(train_on(f, 1, "kind.toml", "moved", with("--train.pause_at=6")).code == 75);
  const Finished last = train_on(f, 2, "kind.toml", "moved", keys);
  INFO(last.out << last.err);
  REQUIRE(last.code == 0);
  CHECK((results_of(f / "runs/moved", "step-00000009") ==
         results_of(f / "runs/whole", "step-00000009")));
}

}  // namespace
