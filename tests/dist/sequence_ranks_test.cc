// Tests of sequence parallelism. Its ops are compared with LibTorch on complete rows. Runs whose
// tensor ranks divide the residual stream are compared with runs on one process.
#include "dist/sequence_ranks.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "autograd/recompute.h"
#include "autograd/tensor_cut.h"
#include "dist/shards.h"
#include "dist/world.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

at::Tensor random_values(uint64_t seed, at::IntArrayRef sizes) {
  torch::manual_seed(seed);
  return torch::randn(sizes, at::kDouble);
}

bool equals_whole_rows(const at::Tensor& a, const at::Tensor& b) {
  // The tolerance allows for float64 sums of a few terms in another order.
  return a.sizes() == b.sizes() && torch::allclose(a, b, 1e-12, 1e-12);
}

/// The block x + down(up(x * scale)^2), in which `up` and `down` are tensor-parallel and `scale` is
/// not.
struct CutBlock {
  at::Tensor up = random_values(1, {12, 4}), down = random_values(2, {4, 12}),
             scale = random_values(3, {4});

  at::Tensor of_whole_rows(const at::Tensor& x, const at::Tensor& scale_) const {
    const at::Tensor h = torch::linear(x * scale_, up);
    return x + torch::linear(h * h, down);
  }
  Variable of_cut_layers(const Variable& x, const Variable& scale_) const {
    const int64_t own = 12 / world().tensor().size, begin = own * world().tensor().rank;
    const Variable own_up(up.narrow(0, begin, own)),
        own_down(down.narrow(1, begin, own).contiguous());
    const Variable h = with_input_of_cut_outputs(
        x * scale_, [own_up](const Variable& in) { return linear(in, own_up); });
    return x + output_of_cut_inputs(linear(h * h, own_down));
  }
};

/// Checks the loss of two blocks, its gradients, and a second derivative.
void check_blocks(RecomputePolicy policy) {
  const CutBlock block;
  const at::Tensor x = random_values(4, {2, 8, 4}), weights = random_values(5, {2, 8, 4});
  const at::Tensor theirs = x.clone().requires_grad_(),
                   scale = block.scale.clone().requires_grad_();
  const at::Tensor y = block.of_whole_rows(block.of_whole_rows(theirs, scale), scale);
  const at::Tensor loss = (y * weights).sum();
  const auto g = torch::autograd::grad({loss}, {theirs, scale}, {}, std::nullopt, true);
  const at::Tensor h = torch::autograd::grad({(g[0] * g[0]).sum()}, {theirs})[0];

  const DivideSequence divided;
  const RecomputeBlocks recomputed(policy);
  Variable mine(x.clone());
  mine.requires_grad_();
  NamedParameter of_block;
  of_block.parameter = Variable::parameter(block.scale.clone(), "scale");
  of_block.block = 0;
  const Variable own_scale = of_block.parameter;
  const Variable result = sum(run_blocks(2, mine,
                                         [&block, own_scale](size_t, const Variable& in) {
                                           CHECK(in.size(1) == 8 / world().tensor().size);
                                           return block.of_cut_layers(in, own_scale);
                                         }) *
                              Variable(weights));
  CHECK(equals_whole_rows(result.data(), loss.detach()));

  const auto first = grad(result, {mine, own_scale}, {}, /*create_graph=*/true);
  CHECK(equals_whole_rows(first[0].data(), g[0].detach()));
  CHECK(!equals_whole_rows(first[1].data(), g[1].detach()));  // a sum over this rank's positions
                                                              // only
  const at::Tensor summed = first[1].data().clone();
  sum_block_gradients({&of_block, 1}, [&](size_t) { return summed; });
  CHECK(equals_whole_rows(summed, g[1].detach()));
  CHECK(equals_whole_rows(grad(sum(first[0] * first[0]), {mine})[0].data(), h));
}

// The next test case runs this one in one process per rank.
TEST_CASE("a rank checks the ops of sequence parallelism", "[.rank_of_sequence_ranks]") {
  const auto placement = placement_from_environment();
  REQUIRE(placement);
  DistConfig config;
  config.tensor = placement->size;
  join_world(*placement, config);
  for (const auto policy :
       {RecomputePolicy::none, RecomputePolicy::blocks, RecomputePolicy::selective})
    check_blocks(policy);

  // Forward passes without a graph keep complete rows. Rows that the ranks can't divide are
  // refused.
  const DivideSequence divided;
  const auto whole = [](size_t, const Variable& in) {
    CHECK(mode().sequence_part == nullptr);
    return in;
  };
  const Variable odd(torch::ones({1, 5, 2}));
  {
    const NoGrad no_grad;
    CHECK(run_blocks(1, odd, whole).size(1) == 5);
  }
  CHECK_THROWS_WITH(run_blocks(1, odd, whole),
                    ContainsSubstring("dist.sequence_parallel") && ContainsSubstring("[1,5,2]"));
  const auto attend = [](size_t, const Variable& in) {
    require_whole_rows("attention", "set the key to false");
    return in;
  };
  CHECK_THROWS_WITH(run_blocks(1, Variable(torch::ones({1, 4, 2})), attend),
                    ContainsSubstring("dist.sequence_parallel: attention ") &&
                        ContainsSubstring("set the key to false"));
  world().wait_for_all();
}

TEST_CASE("ops of sequence parallelism have the derivatives of complete rows on 2 and 4 processes",
          "[sequence_ranks]") {
  for (const int ranks : {2, 4}) lathe::test::check_on_ranks(ranks, "[.rank_of_sequence_ranks]");
}

TEST_CASE("together, the ranges of all parts are the positions of a process's chunks, in order",
          "[sequence_ranks]") {
  constexpr int64_t chunk = 12;
  for (const int64_t contexts : {1, 2, 3}) {
    for (int64_t context = 0; context < contexts; ++context) {
      const PositionPart of_row{context, contexts};
      std::vector<int64_t> expected;  // the positions of a process's two chunks
      for (const int64_t number : of_row.chunks()) {
        for (int64_t i = 0; i < chunk; ++i) expected.push_back(number * chunk + i);
      }
      for (const int64_t parts : {1, 2, 3, 4}) {
        std::vector<int64_t> got;
        for (int64_t part = 0; part < parts; ++part) {
          for (const auto& [begin, length] :
               position_ranges(of_row, {part, parts}, 2 * chunk / parts)) {
            for (int64_t i = 0; i < length; ++i) got.push_back(begin + i);
          }
        }
        INFO(contexts << " " << context << " " << parts);
        CHECK(got == expected);
      }
    }
  }
}

TEST_CASE("tensor ranks with parts of unequal sizes own the same ranges of uncut parameters",
          "[sequence_ranks]") {
  // The parameters are a vocabulary whose rows two ranks can't divide equally, and uncut parameters
  // before and after the vocabulary.
  constexpr int64_t rows = 257, width = 96, count = 40;
  std::vector<ElementRange> ranges[2];

  for (int64_t part = 0; part < 2; ++part) {
    std::vector<NamedParameter> all(count);
    for (int64_t i = 0; i < count; ++i) {
      Variable& p = all[static_cast<size_t>(i)].parameter;
      p = Variable::parameter(torch::zeros({97 * (i + 1)}), "norm");
      if (i % 4 != 0) continue;
      auto cut = std::make_shared<TensorCut>();
      cut->sections = {rows};
      cut->part = part;
      cut->parts = 2;
      p = Variable::parameter(cut->part_of(torch::zeros({rows, width})), "cut");
      p.leaf().cut = cut;
    }

    for (const int64_t bytes : {20'000, 100'000, 10'000'000}) {
      const ShardLayout layout(all, std::vector<bool>(all.size(), true),
                               {.bucket_bytes = bytes, .ranks = 3});
      for (size_t i = 0; i < all.size(); ++i) {
        if (cut_of(all[i].parameter) == nullptr) ranges[part].push_back(layout.range(i, 1));
      }
    }
  }

  // There are 30 uncut parameters in each of three layouts.
  REQUIRE(ranges[0].size() == 90);
  for (size_t i = 0; i < ranges[0].size(); ++i) {
    CHECK(ranges[0][i].begin == ranges[1][i].begin);
    CHECK(ranges[0][i].end == ranges[1][i].end);
  }
}

const Kind dropping_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 2\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};
const Kind normed_llama{.name = "llama",
                        .data = "text",
                        .keys =
                            "n_layer = 2\nn_head = 4\nn_kv_head = 2\nn_embd = 32\nblock_size = "
                            "12\nqk_norm = true\nqkv_bias = true\ntie_weights = false\n"};
const Kind gelu_llama{.name = "llama",
                      .data = "text",
                      .keys =
                          "n_layer = 2\nn_head = 2\nn_embd = 32\nblock_size = 12\nactivation = "
                          "\"gelu\"\nnorm_position = \"both\"\ndropout = 0.1\n"};

const Words sequence_keys{"--train.grad_accum=2",     "--train.batch_size=4",
                          "--train.eval_batches=3",   "--train.steps=30",
                          "--checkpoint.interval=30", "--dist.timeout=60",
                          "--optim.kind=momentum",    "--optim.lr=1e-2"};
const Words divided_keys{"--dist.tensor=2", "--dist.sequence_parallel=true"};

TEST_CASE("runs that divide the residual stream have the losses of one process",
          "[sequence_ranks]") {
  struct Cell {
    const Kind& kind;
    int ranks;
    Words keys;    // keys of both runs
    Words layout;  // additional keys of the divided run
    double tolerance = 1e-6;
  };

  // In each of 30 steps, sums over the processes have another order. The tolerance is 1e-6 in
  // float32. It is larger in bfloat16, which rounds more coarsely, and for Muon, whose iteration
  // amplifies differences.
  const std::vector<Cell> cells{
      {dropping_gpt, 2, {"--train.eval_interval=10", "--optim.grad_clip=0.5"}, {}},
      {dropping_gpt, 4, {"--memory.saved=bf16"}, {"--dist.context=2"}, 2e-2},
      {dropping_gpt, 4, {"--optim.kind=muon", "--optim.muon_steps=3"}, {"--dist.context=2"}, 1e-5},
      {normed_llama, 4, {"--memory.recompute=blocks"}, {"--dist.pipeline=2"}},
      {normed_llama, 4, {"--optim.grad_clip=0.5"}, {"--dist.shard=gradients"}},
      {gelu_llama, 2, {"--amp.dtype=bf16", "--memory.recompute=selective"}, {}, 2e-2},
  };

  for (const Cell& cell : cells) {
    RunsOnRanks runs(sequence_keys, "step-00000030");
    INFO(cell.kind.name << " " << cell.keys[0]);
    const Words all = with_keys(cell.layout, divided_keys);
    const fs::path alone = runs.train(1, cell.kind, cell.keys);
    const fs::path divided = runs.train(cell.ranks, cell.kind, with_keys(cell.keys, all));

    CHECK(numbers_of(alone, "loss").size() == 30);
    CHECK(difference_between(alone, divided, "loss") < cell.tolerance);
    CHECK(difference_between(alone, divided, "val_loss") < cell.tolerance);
    CHECK(difference_between(alone, divided, "grad_norm") < 10 * cell.tolerance);
  }
}

TEST_CASE("runs with sequence parallelism are bitwise equal on any number of data ranks",
          "[sequence_ranks]") {
  RunsOnRanks runs(with_keys(sequence_keys, {"--train.steps=6", "--checkpoint.interval=3"}),
                   "step-00000006");
  const std::string two = runs.results(2, normed_llama, divided_keys);
  CHECK(
      (runs.results(4, normed_llama, with_keys(divided_keys, {"--dist.shard=gradients"})) == two));
  CHECK((runs.results(4, normed_llama,
                      with_keys(divided_keys,
                                {"--dist.shard=parameters", "--memory.recompute=blocks"})) == two));
  // A run that does not divide the residual stream adds the gradients of norms in another order.
  CHECK((runs.results(2, normed_llama, {"--dist.tensor=2"}) != two));
}

TEST_CASE("runs with sequence parallelism use the memory and send the bytes that plan forecasts",
          "[sequence_ranks]") {
  const TempFolder f;
  lathe::test::make_data(f);
  for (const Kind& kind :
       {Kind{"gpt", "text", "n_layer = 4\nn_head = 2\nn_embd = 64\nblock_size = 512\n"},
        Kind{"llama", "text", "n_layer = 4\nn_head = 2\nn_embd = 64\nblock_size = 512\n"}}) {
    lathe::test::write_config(f, kind);
    INFO(kind.name);
    std::vector<double> memory, sent;
    for (const std::string divided : {"false", "true"}) {
      const Words own{"--train.steps=2",         "--train.eval_interval=0",
                      "--train.grad_accum=1",    "--train.batch_size=2",
                      "--dist.timeout=60",       "--dist.tensor=2",
                      "--checkpoint.interval=2", "--dist.sequence_parallel=" + divided};
      const std::string run = kind.name + divided;
      const Finished done = train_on(f, 2, "kind.toml", run, own);
      INFO(done.err);
      REQUIRE(done.code == 0);
      const Json figures = lathe::test::first_rank_stats(f / ("runs/" + run));
      sent.push_back(figures.at("sent_bytes"));
      memory.push_back(lathe::test::check_forecast(f, 2, own, f / ("runs/" + run)));
    }
    // Each block keeps half of the residual stream in four places: the inputs of two norms and of
    // the two layers after them. The stream is [2, 512, 64] in float32. The bound is lower by one
    // block, as an allowance for buffers.
    CHECK(memory[0] - memory[1] > 3 * 4 * (2 * 512 * 64 / 2) * 4);
    // Two layers of a block gather their inputs again, which increases the sent bytes by a quarter.
    CHECK(sent[1] / sent[0] == Approx(1.25).epsilon(0.1));
  }
}

TEST_CASE("dist.sequence_parallel is refused if rows can't be divided", "[sequence_ranks]") {
  const TempFolder f;
  lathe::test::make_data(f);
  struct Refused {
    Words keys;
    Words facts;  // texts that the error must contain; empty if the run is accepted
  };
  const std::vector<Refused> cases{
      {{"--dist.tensor=1"}, {"dist.sequence_parallel = true", "dist.tensor of at least 2"}},
      {{"--model.block_size=13"}, {"dist.sequence_parallel = true", "13 positions", "2 processes"}},
      {{"--model.block_size=12", "--train.steps=1"}, {}},  // accepted
  };

  for (const Refused& c : cases) {
    lathe::test::write_config(f,
                              {.name = "gpt",
                               .data = "text",
                               .keys = "n_layer = 1\nn_head = 2\nn_embd = 8\nblock_size = 12\n"});
    const Finished done = train_on(f, 2, "kind.toml", "refused",
                                   with_keys(with_keys(sequence_keys, divided_keys), c.keys));
    INFO(c.keys[0] << ": " << done.err);
    CHECK(done.code == (c.facts.empty() ? 0 : 2));
    for (const std::string& fact : c.facts) CHECK_THAT(done.err, ContainsSubstring(fact));
    CHECK(fs::exists(f / "runs/refused") == c.facts.empty());
  }
}

}  // namespace
