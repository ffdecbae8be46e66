// Tests of dist.shard with dist.pipeline: the data ranks of a stage divide its optimizer state,
// gradients or parameters. Runs are bitwise equal to runs with unsharded stages.
#include <string>
#include <vector>

#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "train/analysis/fit.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

const Kind three_layers{"gpt", "text",
                        "n_layer = 3\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};
const Kind four_layers{"gpt", "text",
                       "n_layer = 4\nn_head = 2\nn_embd = 32\nblock_size = 12\n"
                       "tie_weights = false\n"};

const Words common_keys{"--train.steps=4",        "--train.grad_accum=4",
                        "--train.batch_size=2",   "--train.eval_interval=2",
                        "--train.eval_batches=2", "--checkpoint.interval=4",
                        "--dist.timeout=60",      "--memory.recompute=blocks"};
const Words shards{"optimizer", "gradients", "parameters"};

Finished train_staged(const TempFolder& f, const std::string& name, int ranks, const Words& keys) {
  Finished done = train_on(f, ranks, "kind.toml", name, with_keys(common_keys, keys));
  INFO(done.out << done.err);
  CHECK(done.code == 0);
  return done;
}

TEST_CASE("sharding the updates of a stage among its data ranks changes no bits",
          "[sharded_stages]") {
  struct Cell {
    const Kind& kind;
    int ranks;
    Words keys;
  };

  const std::vector<Cell> cells{
      {three_layers, 4, {"--dist.pipeline=2", "--optim.grad_clip=0.1", "--optim.ema_decay=0.9"}},
      // Muon needs complete matrices. Working copies and gradients are in bf16.
      {three_layers, 4, {"--dist.pipeline=2", "--optim.kind=muon", "--amp.dtype=bf16"}},
      // The number of data ranks, three, is not a power of two.
      {four_layers, 6, {"--dist.pipeline=2", "--train.grad_accum=3", "--optim.kind=adamw8bit"}},
      {four_layers, 8, {"--dist.pipeline=2", "--dist.tensor=2", "--optim.grad_clip=0.1"}},
      {four_layers, 8, {"--dist.pipeline=4", "--amp.dtype=fp16", "--amp.loss_scale=16777216"}},
      {four_layers, 4, {"--dist.pipeline=2", "--dist.context=2"}},
  };

  for (const Cell& cell : cells) {
    RunsOnRanks runs(common_keys, "step-00000004");
    const std::string whole = runs.results(cell.ranks, cell.kind, cell.keys);

    for (const std::string& shard : shards) {
      INFO(cell.ranks << " processes, " << cell.keys[1] << ", " << shard);
      const Words own = with_keys(cell.keys, {"--dist.shard=" + shard});
      CHECK((runs.results(cell.ranks, cell.kind, own) == whole));
    }
  }
}

TEST_CASE("a run resumes with the same bits on sharded stages, unsharded stages and one process",
          "[sharded_stages]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, four_layers);
  train_staged(f, "whole", 1, {});

  const auto until = [&](int step, int ranks, const Words& keys) {
    const Words paused = with_keys(with_keys(common_keys, keys), {str("--train.pause_at=", step)});
    CHECK(train_on(f, ranks, "kind.toml", "moved", paused).code == 75);
  };
  until(1, 4, {"--dist.pipeline=2", "--dist.shard=parameters", "--checkpoint.async_save=true"});
  until(2, 2, {"--dist.shard=optimizer"});
  until(3, 8, {"--dist.pipeline=4", "--dist.shard=gradients"});
  train_staged(f, "moved", 4, {"--dist.pipeline=2"});
  check_same_tensors(f / "runs/whole", f / "runs/moved", "step-00000004");
}

TEST_CASE(
    "plan --fit for several processes divides the state before it proposes keys that change bits",
    "[sharded_stages]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, {"gpt", "text",
                                "n_layer = 4\nn_head = 2\nn_embd = 128\n"
                                "block_size = 12\n"});
  const Overrides given{
      {"data.dir", (f / "text").string()}, {"train.batch_size", "1"}, {"train.grad_accum", "4"}};
  const std::string path = (f / "kind.toml").string();
  const Forecast now = forecast(load_config(path, given), 4);
  CHECK(find_fit(path, given, now, now.peak_rss())->empty());
  // The optimizer's state has 8 bytes per parameter, of which sharding removes three quarters.
  const auto fit = find_fit(path, given, now, now.peak_rss() - (int64_t{2} << 20));
  REQUIRE(fit);
  CHECK(fit->front() == std::pair<std::string, std::string>("dist.shard", "optimizer"));
}

TEST_CASE("sharded stages use the memory and send the bytes that plan forecasts",
          "[sharded_stages]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, {"gpt", "text",
                                "n_layer = 4\nn_head = 2\nn_embd = 128\nblock_size = 12\n"
                                "vocab_size = 2000\n"});
  const Words keys{"--train.steps=2", "--train.eval_interval=0", "--checkpoint.interval=1",
                   "--dist.pipeline=2", "--dist.bucket_mb=0.2"};

  const auto train = [&](const std::string& name, const Words& more) {
    const Words own = with_keys(keys, more);
    train_staged(f, name, 4, own);
    const Json forecast = lathe::test::plan_of(f, 4, "kind.toml", with_keys(common_keys, own));
    const Json figures = lathe::test::first_rank_stats(f / "runs" / name);
    const double memory = figures.at("memory_bytes");

    INFO(name);
    // The number of buckets that wait to be sent depends on timing. So does the number of blocks
    // whose parameters are gathered ahead.
    const double tolerance = name == "parameters" ? 0.1 : 0.05;
    CHECK(forecast.at("tensors_mb").get<double>() * (1 << 20) == Approx(memory).epsilon(tolerance));
    CHECK(forecast.at("sent_bytes_per_step").get<double>() ==
          Approx(lathe::test::most_sent(f / "runs" / name)).epsilon(0.01));
    return memory;
  };

  // The first stage has the weight of an untied head, but never its gradient.
  train("untied", {"--model.tie_weights=false"});

  // Sharding saves more than a tenth of rank 0's memory.
  const double whole = train("none", {});
  for (const std::string& shard : shards)
    CHECK(train(shard, {"--dist.shard=" + shard}) < 0.9 * whole);
}

}  // namespace
