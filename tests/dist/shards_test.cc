// Tests of dist.shard: which rank owns which elements, and that sharding does not change the bits
// of runs.
#include "dist/shards.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "core/kernels/update.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

std::vector<NamedParameter> parameters_of(const std::vector<int64_t>& sizes) {
  std::vector<NamedParameter> all;
  for (const int64_t n : sizes) {
    all.push_back(
        {"p" + std::to_string(all.size()), Variable::parameter(at::zeros({n})), Role::bias});
  }
  return all;
}

/// Checks that each element has one owner, and that parameters are cut only where `is_divisible` is
/// true. Returns the number of elements of each rank.
std::vector<int64_t> owned_by_ranks(const std::vector<int64_t>& sizes,
                                    const std::vector<bool>& is_divisible, int64_t bucket_bytes,
                                    int ranks) {
  const auto parameters = parameters_of(sizes);
  const ShardLayout layout(parameters, is_divisible,
                           {.bucket_bytes = bucket_bytes, .ranks = ranks});
  std::vector<int64_t> owned(static_cast<size_t>(ranks));

  size_t in_buckets = 0;
  for (const Bucket& bucket : layout.buckets()) in_buckets += bucket.parameters.size();
  CHECK(in_buckets == sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t next = 0;
    for (int r = 0; r < ranks; ++r) {
      const ElementRange range = layout.range(i, r);
      owned[static_cast<size_t>(r)] += range.size();
      if (range.size() == 0) continue;
      CHECK(range.begin == next);
      next = range.end;
      CHECK((range.end == sizes[i] || range.end % grad_sum_chunk == 0));
      if (!is_divisible[i]) CHECK(range.size() == sizes[i]);
    }
    CHECK(next == sizes[i]);
  }
  return owned;
}

int64_t spread(const std::vector<int64_t>& owned) {
  const auto [least, most] = std::minmax_element(owned.begin(), owned.end());
  return *most - *least;
}

TEST_CASE("each element of a parameter has one owner, and ranks own nearly the same number",
          "[shards]") {
  // This model's embedding is larger than all other parameters together.
  const std::vector<int64_t> sizes{4000000, 0, 768, 589824, 2304, 1769472, 768, 3, 589824};
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int64_t bytes : {int64_t{1}, int64_t{1} << 20, int64_t{1} << 40}) {
      INFO(ranks << " ranks, buckets of " << bytes << " bytes");
      const std::vector<bool> divisible(sizes.size(), true);
      const auto owned = owned_by_ranks(sizes, divisible, bytes, ranks);
      CHECK(std::accumulate(owned.begin(), owned.end(), int64_t{0}) ==
            std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
      CHECK(spread(owned) <= 2 * grad_sum_chunk);
    }
  }
}

TEST_CASE("parameters that are updated as a whole are never cut", "[shards]") {
  const std::vector<int64_t> sizes{4000000, 100000, 100000, 100000, 100000, 70000};
  const std::vector<bool> divisible{true, false, false, false, false, true};
  for (const int ranks : {1, 2, 4}) {
    const auto owned = owned_by_ranks(sizes, divisible, int64_t{1} << 30, ranks);
    CHECK(spread(owned) <= 2 * grad_sum_chunk);
  }
  // With more ranks than tensors, some ranks own nothing.
  const auto owned = owned_by_ranks({70000, 70000}, {false, false}, int64_t{1} << 30, 4);
  CHECK(owned == std::vector<int64_t>{70000, 70000, 0, 0});
}

TEST_CASE("buckets are completed in the order of the backward pass", "[shards]") {
  // Small parameters of two kinds alternate. No bucket of either kind may wait for the first layer.
  std::vector<int64_t> sizes;
  std::vector<bool> divisible;
  for (int layer = 0; layer < 16; ++layer) {
    sizes.insert(sizes.end(), {1000, 10});
    divisible.insert(divisible.end(), {false, true});
  }
  const ShardLayout layout(parameters_of(sizes), divisible, {.bucket_bytes = 16000, .ranks = 2});
  CHECK(layout.buckets().size() == 5);
  size_t last = sizes.size();
  for (const Bucket& bucket : layout.buckets()) {
    const size_t first = *std::min_element(bucket.parameters.begin(), bucket.parameters.end());
    CHECK(first < last);
    last = first;
  }
}

// The matrices of this GPT have more elements than a partial sum covers, so that ranks cut them.
const Kind wide_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 2\nn_head = 2\nn_embd = 128\nblock_size = 12\ndropout = 0.1\n"};

const Words shard_keys{"--train.steps=4",         "--train.grad_accum=8",    "--train.batch_size=2",
                       "--train.eval_interval=0", "--checkpoint.interval=4", "--dist.timeout=60"};

TEST_CASE("sharding changes no bits with any optimizer and precision", "[shards]") {
  const std::vector<Words> cells{
      {"--optim.grad_clip=0.5", "--dist.bucket_mb=0.3"},
      {"--optim.kind=adamw8bit", "--checkpoint.async_save=true", "--checkpoint.interval=2"},
      {"--optim.kind=muon", "--log.layers=1", "--log.tensorboard=true", "--log.histograms=2"},
      {"--optim.kind=adafactor", "--amp.dtype=bf16", "--amp.grad=low"},
      {"--optim.kind=lamb", "--optim.ema_decay=0.9", "--amp.dtype=bf16", "--checkpoint.dtype=bf16"},
      {"--optim.kind=nadam", "--optim.grad_clip_by=parameter", "--optim.grad_clip=0.1"},
      {"--amp.dtype=bf16", "--amp.master=false"},
      {"--amp.dtype=fp8", "--amp.fp8_scaling=delayed", "--amp.fp8_edge_blocks=0",
       "--train.batch_size=4", "--optim.kind=sgd", "--train.spike_sigma=0.5"},
      {"--amp.dtype=fp16", "--amp.loss_scale=16777216", "--memory.recompute=blocks"},
  };

  RunsOnRanks runs(shard_keys, "step-00000004");
  for (size_t i = 0; i < cells.size(); ++i) {
    std::string keys;
    for (const std::string& key : cells[i]) keys += key + " ";
    const std::string alone = runs.results(1, wide_gpt, cells[i]);

    // Each cell runs several kinds of sharding, each on 2 or on 4 ranks. The cells together have
    // all combinations.
    const int first = i % 2 == 0 ? 2 : 4;
    INFO(keys);
    if (i % 3 == 0)
      CHECK((runs.results(first, wide_gpt, with_keys(cells[i], {"--dist.shard=optimizer"})) ==
             alone));
    CHECK((runs.results(6 - first, wide_gpt, with_keys(cells[i], {"--dist.shard=gradients"})) ==
           alone));
    const std::string policy = i % 2 == 0 ? "blocks" : "selective";
    CHECK((runs.results(first, wide_gpt,
                        with_keys(cells[i], {"--dist.shard=parameters",
                                             "--memory.recompute=" + policy})) == alone));
  }

  // On three ranks, each rank has two micro-batches.
  const Words six{"--train.grad_accum=6"};
  CHECK((runs.results(3, wide_gpt, with_keys(six, {"--dist.shard=gradients"})) ==
         runs.results(1, wide_gpt, six)));

  // The comparison must notice a wrong seed.
  CHECK((runs.results(2, wide_gpt, {"--dist.shard=optimizer", "--train.seed=7"}) !=
         runs.results(1, wide_gpt, {})));
}

TEST_CASE("sharding saves the memory and sends the bytes that plan forecasts", "[shards]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f,
                            {.name = "gpt",
                             .data = "text",
                             .keys = "n_layer = 6\nn_head = 2\nn_embd = 128\nblock_size = 12\n"});
  const Words keys{
      "--train.steps=2",        "--train.grad_accum=4",      "--train.batch_size=1",
      "--train.log_interval=1", "--train.eval_interval=0",   "--dist.timeout=60",
      "--dist.bucket_mb=0.3",   "--memory.recompute=blocks", "--checkpoint.interval=0"};
  // The model has 6 blocks of 12 x 128^2 elements. This bound neglects other parameters.
  const double elements = 6.0 * 12 * 128 * 128, others = 3.0 / 4;

  std::vector<double> memory;
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    INFO(shard);
    const Words own = with_keys(keys, {std::string("--dist.shard=") + shard});
    REQUIRE(train_on(f, 4, "kind.toml", shard, own).code == 0);
    const lathe::Json figures = lathe::test::first_rank_stats(f / "runs" / shard);
    memory.push_back(figures.at("memory_bytes"));

    const lathe::Json forecast = lathe::test::plan_of(f, 4, "kind.toml", own);
    CHECK(forecast.at("sent_bytes_per_step") == lathe::test::most_sent(f / "runs" / shard));
    // The number of buckets that wait for the exchange depends on timing. Five buckets take 1.5 MB.
    CHECK(forecast.at("tensors_mb").get<double>() * (1 << 20) ==
          Approx(memory.back()).margin(1.5e6));
  }
  // Three quarters of Adam's 8 bytes per parameter are on other ranks. Three quarters of the
  // parameters' 4 bytes are also on other ranks, except in the block that runs. Buckets in transfer
  // need some memory.
  CHECK(memory[0] - memory[1] > 0.9 * 8 * others * elements - 0.3e6);
  CHECK(memory[1] - memory[3] > 0.3 * 4 * others * elements - 0.3e6);
}

TEST_CASE("plan forecasts the rank with the largest memory if tensors belong to one rank",
          "[shards]") {
  const TempFolder f;
  lathe::test::make_data(f);

  // Nearly all elements are in the embedding. Small buckets assign it to a rank other than rank 0.
  lathe::test::write_config(
      f, {.name = "gpt",
          .data = "text",
          .keys = "n_layer = 2\nn_head = 2\nn_embd = 32\nblock_size = 12\nvocab_size "
                  "= 20000\n"});
  const Words keys{"--train.steps=2",         "--train.grad_accum=4",    "--train.batch_size=1",
                   "--train.log_interval=1",  "--train.eval_interval=0", "--dist.timeout=60",
                   "--checkpoint.interval=0", "--optim.kind=lamb",       "--dist.bucket_mb=0.02"};

  for (const char* shard : {"optimizer", "gradients"}) {
    const Words own = with_keys(keys, {std::string("--dist.shard=") + shard});
    REQUIRE(train_on(f, 4, "kind.toml", shard, own).code == 0);

    double least = 1e300, most = 0;
    for (const Json& rank : lathe::test::rank_stats(f / "runs" / shard)) {
      least = std::min(least, rank.at("memory_bytes").get<double>());
      most = std::max(most, rank.at("memory_bytes").get<double>());
    }
    INFO(shard << ": " << least << " to " << most);
    CHECK(most > 1.5 * least);

    const Json forecast = lathe::test::plan_of(f, 4, "kind.toml", own);
    CHECK(forecast.at("tensors_mb").get<double>() * (1 << 20) == Approx(most).epsilon(0.05));
    CHECK(forecast.at("sent_bytes_per_step") == lathe::test::most_sent(f / "runs" / shard));
  }
}

TEST_CASE("plan forecasts gradients that wait to be sent", "[shards]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f,
                            {.name = "gpt",
                             .data = "text",
                             .keys = "n_layer = 3\nn_head = 2\nn_embd = 256\nblock_size = 16\n"});
  const Words keys{"--train.steps=3",        "--train.grad_accum=4",    "--train.batch_size=8",
                   "--train.log_interval=1", "--train.eval_interval=0", "--dist.timeout=60",
                   "--checkpoint.interval=0"};

  // A bucket of 2 MB holds 2 matrices of a block. With fp8, matrices and vectors have separate
  // buckets, which become full shortly after each other.
  for (const Words& more : {Words{"--dist.bucket_mb=2", "--dist.shard=optimizer"},
                            Words{"--dist.bucket_mb=2", "--dist.shard=gradients"},
                            Words{"--dist.bucket_mb=2", "--memory.update_in_backward=true",
                                  "--train.grad_accum=2", "--optim.grad_clip=0"},
                            Words{"--amp.dtype=fp8", "--dist.shard=optimizer"}}) {
    INFO(more[0] << " " << more[1]);
    const Words own = with_keys(keys, more);
    REQUIRE(train_on(f, 2, "kind.toml", more[0] + more[1], own).code == 0);

    double most = 0;
    for (const Json& rank : lathe::test::rank_stats(f / "runs" / (more[0] + more[1])))
      most = std::max(most, rank.at("memory_bytes").get<double>());
    // A bucket that is sent while the next one is filled takes 2 of 30 MB, unless it has already
    // been sent.
    const double planned = lathe::test::plan_of(f, 2, "kind.toml", own).at("tensors_mb");
    CHECK(most <= 1.03 * planned * (1 << 20));
    CHECK(most >= 0.9 * planned * (1 << 20));
  }
}

// A layer of an RNN uses its weights at every position. All uses share one cast of the weights, and
// the gradients of the uses are summed before they pass through this cast.
TEST_CASE("weights whose casts are shared by several uses are bitwise unchanged by sharding",
          "[shards]") {
  RunsOnRanks runs(shard_keys, "step-00000004");
  const Words keys{"--amp.dtype=bf16", "--amp.working_copies=false", "--train.steps=4"};
  const Kind& lstm = lathe::test::kinds[4];
  const std::string alone = runs.results(1, lstm, keys);
  CHECK((runs.results(2, lstm,
                      with_keys(keys, {"--dist.shard=parameters", "--memory.recompute=blocks"})) ==
         alone));
  // The comparison notices that sums have another precision if casts are not cached.
  CHECK((runs.results(1, lstm, with_keys(keys, {"--amp.cache=false"})) != alone));
}

TEST_CASE("dist.reduce_dtype = bf16 sends rounded gradients, which have half as many bytes",
          "[shards]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, wide_gpt);
  const Words keys{"--train.steps=4",        "--train.grad_accum=4",    "--train.eval_interval=0",
                   "--train.log_interval=1", "--checkpoint.interval=4", "--dist.timeout=60"};
  const Words low{"--dist.reduce_dtype=bf16"};
  const auto train = [&](int ranks, const std::string& name, const Words& more) {
    const Finished done = train_on(f, ranks, "kind.toml", name, with_keys(keys, more));
    INFO(done.err);
    REQUIRE(done.code == 0);
    return results_of(f / ("runs/" + name), "step-00000004");
  };
  const std::string alone = train(1, "alone", {}), full = train(2, "full", {}),
                    first = train(2, "first", low);
  CHECK((alone == full));
  CHECK((first != full));

  // A repeated run is bitwise equal, even with sharded optimizer state. A single process sends
  // nothing, so dist.reduce_dtype changes none of its bits.
  CHECK((train(2, "again", low) == first));
  CHECK((train(2, "sharded", with_keys(low, {"--dist.shard=optimizer"})) == first));
  CHECK((train(1, "alone-low", low) == alone));

  CHECK(lathe::test::first_rank_stats(f / "runs/first").at("sent_bytes").get<int64_t>() * 2 ==
        lathe::test::first_rank_stats(f / "runs/full").at("sent_bytes").get<int64_t>());

  // Adam's first steps have the size of the learning rate for gradients of any size, so two
  // roundings to 8 bits appear in the third digit of the loss.
  const auto loss = [&](const std::string& name) {
    const std::string text = lathe::test::slurp(f / "runs" / name / "metrics.jsonl");
    return std::stod(text.substr(text.rfind("\"loss\":") + 7));
  };
  CHECK(loss("first") == Approx(loss("full")).epsilon(1e-2));
}

TEST_CASE("sharding the gradients of a model with running statistics changes no bits", "[shards]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, lathe::test::kinds[0]);  // an mlp with batch norm
  const Words keys{"--train.steps=4", "--train.grad_accum=8", "--train.batch_size=2",
                   "--checkpoint.interval=4", "--dist.timeout=60"};
  REQUIRE(train_on(f, 1, "kind.toml", "alone", keys).code == 0);
  REQUIRE(train_on(f, 4, "kind.toml", "shared", with_keys(keys, {"--dist.shard=gradients"})).code ==
          0);
  CHECK((results_of(f / "runs/shared", "step-00000004") ==
         results_of(f / "runs/alone", "step-00000004")));
}

TEST_CASE("a run resumes with other ranks and another dist.shard, with the same bits", "[shards]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, wide_gpt);
  const Words keys{"--train.steps=8",   "--train.grad_accum=4", "--checkpoint.interval=100",
                   "--dist.timeout=60", "--optim.kind=muon",    "--memory.recompute=blocks"};
  REQUIRE(train_on(f, 1, "kind.toml", "whole", keys).code == 0);

  const auto go = [&](int ranks, const std::string& shard, const std::string& pause_at) {
    Words own = with_keys(keys, {"--dist.shard=" + shard});
    if (!pause_at.empty()) own.push_back("--train.pause_at=" + pause_at);
    const Finished done = train_on(f, ranks, "kind.toml", "moved", own);
    INFO(done.out << done.err);
    CHECK(done.code == (pause_at.empty() ? 0 : 75));
  };
  go(4, "parameters", "2");
  go(1, "gradients", "3");
  go(2, "optimizer", "5");
  go(2, "parameters", "6");
  go(4, "none", "");
  // Only tensors are compared: metrics.jsonl also records that the key changed.
  check_same_tensors(f / "runs/whole", f / "runs/moved", "step-00000008");
}

}  // namespace
