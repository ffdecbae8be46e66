// Tests of context parallelism. Attention and runs whose positions are divided among several
// processes are compared with attention and runs on one process.
#include "dist/context_ranks.h"

#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "dist/world.h"
#include "nn/layers/documents.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

constexpr int64_t rows = 2, heads = 4, key_heads = 2, head_width = 8;

/// Returns the starts of documents of different lengths, for rows of `time` positions.
at::Tensor starts_of(int64_t time) {
  at::Tensor starts = torch::zeros({rows, time}, at::kLong);
  for (const int64_t begin : {int64_t{3}, time / 2 + 1, time - 2}) {
    starts[0].slice(0, begin) = begin;
    starts[1].slice(0, begin - 1) = begin - 1;
  }
  return starts;
}

/// Checks attention of this rank's positions, its gradients and its second derivatives. They must
/// agree with the same positions of attention over complete rows.
void check_attention(int64_t time, bool has_documents, const ScoreOptions& scores,
                     at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(time);
  const at::Tensor q = torch::randn({rows, time, heads * head_width}, dtype),
                   kv = torch::randn({rows, time, 2 * key_heads * head_width}, dtype),
                   dy = torch::randn_like(q);
  const at::Tensor starts = has_documents ? starts_of(time) : at::Tensor();
  const auto attend_whole = [&](const std::vector<Variable>& in) {
    const int64_t width = key_heads * head_width;
    return attention(in[0], slice(in[1], 2, 0, width), slice(in[1], 2, width, 2 * width), heads,
                     key_heads, starts, {}, scores);
  };
  const auto attend_own = [&](const std::vector<Variable>& in) {
    return attention_of_context_ranks(in[0], in[1], heads, key_heads, own_positions(starts),
                                      scores);
  };

  // Returns the output and the derivatives of this rank's loss. The total loss is the sum over the
  // ranks.
  const auto results = [](auto&& attend, const at::Tensor& query, const at::Tensor& key_value,
                          const at::Tensor& weights) {
    std::vector<Variable> in{Variable(query.clone()), Variable(key_value.clone())};
    for (Variable& v : in) v.requires_grad_();
    const Variable y = attend(in);
    std::vector<at::Tensor> all{y.data()};
    const auto first = grad(sum(y * Variable(weights)), in, {}, /*create_graph=*/true);
    for (const Variable& g : first) all.push_back(g.data());
    const Variable squares = sum(first[0] * first[0]) + sum(first[1] * first[1]);
    for (const Variable& g : grad(squares, in)) all.push_back(g.data());
    return all;
  };
  const auto wanted = results(attend_whole, q, kv, dy);
  const DividePositions divided;
  const auto ours = results(attend_own, own_positions(q), own_positions(kv), own_positions(dy));
  for (size_t i = 0; i < wanted.size(); ++i) {
    INFO(time << " " << has_documents << " " << scores.window << ": result " << i);
    // Sums over the keys have another order, and second derivatives have several such sums in a
    // row.
    const double unit = dtype == at::kDouble ? 1e-11 : 1e-4;
    CHECK(torch::allclose(ours[i], own_positions(wanted[i]), unit, unit));
  }
}

/// Checks that dropout drops the same elements as in complete rows, and that token_positions()
/// returns positions within the complete row.
void check_places() {
  const int64_t time = 4 * world().context().size;
  const at::Tensor ones = torch::ones({3, time, 5});
  const auto dropped = [](const at::Tensor& x) {
    const TrainingStep step({.seed = 3, .step = 2, .first_sample = 6});
    Variable in(x);
    in.requires_grad_();
    const Variable y = dropout(in, 0.5, 7);
    backward(sum(y));
    CHECK(y.data().equal(in.grad()));
    return y.data();
  };
  const at::Tensor whole = dropped(ones), starts = starts_of(time);
  const at::Tensor in_row = torch::arange(time).unsqueeze(0);

  const DividePositions divided;
  CHECK(dropped(own_positions(ones)).equal(own_positions(whole)));
  CHECK(token_positions(4, at::kCPU).equal(own_positions(in_row)[0]));
  const at::Tensor own_starts = own_positions(starts);
  const SeparateDocuments documents(own_starts);
  CHECK(token_positions(4, at::kCPU).equal(own_positions(in_row - starts)));
}

// The next test case runs this one in one process per rank.
TEST_CASE("a rank checks attention to the keys of all context ranks", "[.rank_of_context_ranks]") {
  const auto placement = placement_from_environment();
  REQUIRE(placement);
  DistConfig config;
  config.context = placement->size == 6 ? 3 : placement->size;
  join_world(*placement, config);
  CHECK(world().batches().size == placement->size / config.context);

  // The first rows have chunks of two positions. The second rows are longer than a block of the
  // kernel.
  for (const int64_t time : {4 * config.context, 40 * config.context}) {
    check_attention(time, false, {});
    check_attention(time, true, {});
    check_attention(time, true, {.window = 3, .scale = 0.4, .softcap = 2});
    check_attention(time, true, {.window = 3}, at::kFloat);
  }
  check_places();
  world().wait_for_all();
}

TEST_CASE("attention over divided positions has the derivatives of attention over complete rows",
          "[context_ranks]") {
  for (const int ranks : {2, 4, 6}) check_on_ranks(ranks, "[.rank_of_context_ranks]");
}

const std::string context_sizes = "n_layer = 2\nn_head = 4\nn_embd = 32\nblock_size = 16\n";
const Kind context_gpt{.name = "gpt", .data = "text", .keys = context_sizes + "dropout = 0.1\n"};
const Kind context_llama{
    .name = "llama",
    .data = "text",
    .keys = context_sizes + "n_kv_head = 2\nsliding_window = 7\nwindow_layers = \"10\"\n"};

TEST_CASE("a run whose positions are divided has the losses of one process on every grid",
          "[context_ranks]") {
  struct Cell {
    int ranks;
    Words keys;
    double tolerance = 1e-6;  // allows for another order of sums in 50 float32 steps
  };
  RunsOnRanks runs({"--train.grad_accum=2", "--train.batch_size=4", "--train.eval_batches=3",
                    "--dist.timeout=60", "--train.steps=50", "--train.eval_interval=25",
                    "--checkpoint.interval=50", "--optim.lr=1e-3", "--optim.grad_clip=0.5"},
                   "step-00000050");
  const Words documents{"--data.documents=separate", "--data.document_end=10"};
  for (const auto& [kind, keys, cells] :
       {std::tuple(context_gpt, Words{},
                   std::vector<Cell>{{2, {"--dist.context=2"}},
                                     {4, {"--dist.context=2", "--dist.shard=gradients"}},
                                     {4, {"--dist.context=2", "--dist.tensor=2"}}}),
        {context_llama,
         {},
         {{2, {"--dist.context=2", "--memory.recompute=blocks", "--dist.shard=parameters"}},
          // bfloat16 rounds more coarsely, and training steps amplify the errors.
          {4, {"--dist.context=4", "--amp.dtype=bf16"}, 2e-2}}},
        {context_gpt, documents, {{4, {"--dist.context=4"}}}},
        {context_llama, documents, {{4, {"--dist.context=2", "--dist.pipeline=2"}}}}}) {
    const fs::path alone = runs.train(1, kind, keys);
    for (const Cell& cell : cells) {
      INFO(kind.name << " " << cell.ranks << " " << cell.keys[0] << " " << cell.keys.back());
      const fs::path run = runs.train(cell.ranks, kind, with_keys(keys, cell.keys));
      CHECK(difference_between(alone, run, "loss") < cell.tolerance);
      CHECK(difference_between(alone, run, "val_loss") < cell.tolerance);
      CHECK(difference_between(alone, run, "grad_norm") < 10 * cell.tolerance);
    }
  }
  // Neither additional data ranks nor sharding change a bit of the results.
  const std::string two = runs.results(2, context_gpt, {"--dist.context=2"});
  CHECK((two == runs.results(4, context_gpt, {"--dist.context=2", "--dist.shard=gradients"})));
  CHECK((two != runs.results(1, context_gpt, {})));  // one process sums in another order

  // The number of data ranks, three, is not a power of two, yet the sums are bitwise equal.
  const Words three{"--dist.context=2", "--train.grad_accum=3", "--train.steps=9",
                    "--checkpoint.interval=50", "--train.eval_interval=3"};
  const auto numbers = [&](int ranks) {
    return numbers_of(runs.train(ranks, context_gpt, three), "grad_norm");
  };
  const std::vector<double> in_one = numbers(2);
  CHECK(in_one.size() == 9);
  CHECK(in_one == numbers(6));
}

TEST_CASE("a run with divided positions resumes on any grid", "[context_ranks]") {
  const TempFolder f;
  make_data(f);
  write_config(f, context_gpt);
  const Words keys{"--train.grad_accum=2", "--train.batch_size=4", "--train.steps=9",
                   "--dist.timeout=60",    "--dist.context=2",     "--optim.ema_decay=0.9"};
  const auto with = [&](const Words& more) { return with_keys(keys, more); };
  REQUIRE(train_on(f, 2, "kind.toml", "whole", keys).code == 0);
  REQUIRE(train_on(f, 2, "kind.toml", "moved", with({"--train.pause_at=3"})).code == 75);
  REQUIRE(train_on(f, 4, "kind.toml", "moved", with({"--train.pause_at=6"})).code == 75);
  REQUIRE(train_on(f, 2, "kind.toml", "moved", with({"--dist.shard=optimizer"})).code == 0);
  check_same_tensors(f / "runs/whole", f / "runs/moved", "step-00000009");
}

TEST_CASE("runs with divided positions use the memory and send the bytes that plan forecasts",
          "[context_ranks]") {
  const TempFolder f;
  make_data(f);
  write_config(f, {.name = "gpt",
                   .data = "text",
                   .keys = "n_layer = 4\nn_head = 2\nn_embd = 64\nblock_size = 128\n"});
  std::vector<double> memory;
  for (const char* context : {"1", "2"}) {
    const Words keys{"--train.grad_accum=2", "--train.batch_size=16",
                     "--train.steps=2",      "--train.eval_interval=0",
                     "--dist.timeout=60",    std::string("--dist.context=") + context};
    REQUIRE(train_on(f, 2, "kind.toml", context, keys).code == 0);
    memory.push_back(check_forecast(f, 2, keys, f / "runs" / context));
  }
  // Most memory is activations, which each process has for half of the positions. The keys and
  // values are of all positions.
  CHECK(memory[1] < 0.75 * memory[0]);
}

TEST_CASE("dist.context is refused if positions can't be divided", "[context_ranks]") {
  struct Refused {
    Kind kind;
    Words keys;
    Words facts;  // texts that the error must contain; empty if the run is accepted
  };
  const TempFolder f;
  make_data(f);

  for (const Refused& c : std::vector<Refused>{
           {context_gpt, {}, {}},  // accepted
           {context_gpt, {"--train.sum_order=sequence"}, {"train.sum_order = \"sequence\""}},
           {context_gpt, {"--data.window=14"}, {"dist.context = 2", "14 positions"}},
           {{"rnn", "text", "block_size = 16\n"}, {}, {"dist.context = 2", "\"rnn\""}},
           {{"mlp", "images", ""}, {}, {"dist.context = 2", "task classification"}},
           {context_gpt,
            {"--dist.tensor=2"},
            {"dist.context times dist.tensor = 4", "2 processes"}}}) {
    write_config(f, c.kind);
    const Finished done =
        train_on(f, 2, "kind.toml", "refused",
                 with_keys({"--dist.context=2", "--train.steps=1", "--dist.timeout=60"}, c.keys));

    INFO(c.kind.name << ": " << done.err);
    CHECK(done.code == (c.facts.empty() ? 0 : 2));
    for (const std::string& fact : c.facts) CHECK_THAT(done.err, ContainsSubstring(fact));
    CHECK(fs::exists(f / "runs/refused") == c.facts.empty());
    fs::remove_all(f / "runs");
  }
}

}  // namespace
