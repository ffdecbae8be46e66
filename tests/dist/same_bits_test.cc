// Tests that a run has the same bits on any number of processes, for a table of kinds, precisions
// and optimizers.
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
const Kind deep_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 4\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};

struct Cell {
  const Kind& kind;
  Words keys;
};

/// test::kinds: 0 an mlp with batch norm, 1 an mlp of numbers, 2 a convnet, 3 a Llama, 4 an LSTM.
std::vector<Cell> cells() {
  const auto& kinds = lathe::test::kinds;
  return {
      {small_gpt, {"--optim.grad_clip=0.5", "--dist.bucket_mb=0.002", "--memory.saved=fp8"}},
      {deep_gpt, {"--amp.dtype=fp8", "--amp.fp8_scaling=delayed", "--optim.kind=adafactor"}},
      {kinds[0], {"--amp.dtype=bf16", "--amp.grad=low", "--optim.kind=adam8bit"}},
      {kinds[1], {"--optim.kind=sgd", "--train.spike_sigma=0.5"}},
      {kinds[2], {"--amp.dtype=fp16", "--amp.scaler=dynamic", "--amp.loss_scale=16777216"}},
      {kinds[3], {"--amp.dtype=bf16", "--optim.kind=muon", "--memory.recompute=selective"}},
      {kinds[4], {"--amp.dtype=fp16", "--optim.ema_decay=0.9", "--memory.saved=bf16"}},
  };
}

const Words same_bits_keys{"--train.steps=6",        "--train.grad_accum=4",
                           "--train.batch_size=4",   "--train.eval_interval=3",
                           "--train.eval_batches=3", "--checkpoint.interval=6",
                           "--dist.timeout=60"};

TEST_CASE("kinds, precisions and optimizers have the same bits on 1, 2 and 4 processes",
          "[same_bits]") {
  RunsOnRanks runs(same_bits_keys, "step-00000006");
  for (const Cell& cell : cells()) {
    const std::string alone = runs.results(1, cell.kind, cell.keys);
    for (const int ranks : {2, 4}) {
      INFO(cell.kind.name << " on " << ranks << " processes");
      CHECK((runs.results(ranks, cell.kind, cell.keys) == alone));
    }
  }
}

TEST_CASE("train.sum_order = sequence adds micro-batches one after another, on one process",
          "[same_bits]") {
  const TempFolder f;
  lathe::test::make_tiny_run(f.path());
  const RunData data =
      RunData::open(load_config((f / "tiny.toml").string(), {{"train.grad_accum", "5"},
                                                             {"train.sum_order", "sequence"},
                                                             {"data.dir", (f / "data").string()}}));
  LoadedConfig loaded = data.loaded;

  // The oracle: backward accumulates into existing gradients.
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

TEST_CASE("all processes end by train.early_stop after the same step", "[same_bits]") {
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

TEST_CASE("bits are the same on 8 processes and for any bucket size", "[same_bits]") {
  RunsOnRanks runs(same_bits_keys, "step-00000006");
  const Cell cell{small_gpt, {"--train.grad_accum=8", "--train.batch_size=2"}};
  const std::string alone = runs.results(1, cell.kind, cell.keys);
  CHECK((runs.results(8, cell.kind, cell.keys) == alone));
  CHECK((runs.results(2, cell.kind, with_keys(cell.keys, {"--dist.bucket_mb=0.001"})) == alone));
  // The control: another seed has other bits.
  CHECK((runs.results(1, cell.kind, with_keys(cell.keys, {"--train.seed=7"})) != alone));
}

TEST_CASE("3 processes give reproducible bits, and agree with one process up to rounding",
          "[same_bits]") {
  RunsOnRanks runs(same_bits_keys, "step-00000006");
  const Cell cell{small_gpt, {"--train.grad_accum=9", "--train.batch_size=2", "--optim.kind=sgd"}};
  const auto loss = [](const std::string& results) {
    double last = 0;
    for (size_t at = 0; (at = results.find("\"loss\":", at)) != std::string::npos; ++at)
      last = std::stod(results.substr(at + 7));
    return last;
  };
  const std::string alone = runs.results(1, cell.kind, cell.keys),
                    three = runs.results(3, cell.kind, cell.keys);
  CHECK((runs.results(3, cell.kind, cell.keys) == three));
  CHECK((three != alone));
  // Six steps of float32 sums in another order.
  CHECK(loss(three) == Approx(loss(alone)).epsilon(1e-6));
}

TEST_CASE(
    "a run stopped on 4 processes resumes on 1 and on 2, with the bits of one that never "
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
