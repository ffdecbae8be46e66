// Tests of tensor parallelism. Its ops are compared with LibTorch's autograd of complete tensors.
// Tensor-parallel runs are compared with runs on one process.
#include "dist/tensor_ranks.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/config.h"
#include "core/io/safetensors.h"
#include "dist/world.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/support/torch_oracle.h"
#include "train/config/run_config.h"
#include "train/step/shares.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Tensors = std::vector<at::Tensor>;
using Words = std::vector<std::string>;

bool equals_whole(const at::Tensor& a, const at::Tensor& b) {
  // The tolerance allows for float64 sums of a few terms in another order.
  return a.sizes() == b.sizes() && torch::allclose(a, b, 1e-12, 1e-12);
}

at::Tensor random(uint64_t seed, at::IntArrayRef sizes) {
  torch::manual_seed(seed);
  return torch::randn(sizes, at::kDouble);
}

TensorCut cut_of_vocabulary(int64_t size) {
  return {
      .dim = 0, .sections = {size}, .part = world().tensor().rank, .parts = world().tensor().size};
}

/// Returns this rank's part of `whole`, a tensor that all ranks have, along `dim`.
at::Tensor own_part(const at::Tensor& whole, int64_t dim) {
  const ElementRange own = cut_of_vocabulary(whole.size(dim)).range(0, world().tensor().rank);
  return whole.slice(dim, own.begin, own.end);
}

/// Checks the value, the gradient and the second derivatives of a loss that all ranks compute from
/// x. `ours` computes the loss with this rank's part of the weights, and `oracle` with the complete
/// weights.
void check_loss(const std::function<Variable(const Variable&)>& ours,
                const std::function<at::Tensor(const at::Tensor&)>& oracle, const at::Tensor& x) {
  const at::Tensor theirs = x.clone().requires_grad_();
  const at::Tensor loss = oracle(theirs);
  const at::Tensor g = torch::autograd::grad({loss}, {theirs}, {}, std::nullopt, true)[0];
  const at::Tensor h = torch::autograd::grad({(g * g).sum()}, {theirs})[0];

  Variable mine(x.clone());
  mine.requires_grad_();
  const Variable result = ours(mine);
  CHECK(equals_whole(result.data(), loss.detach()));
  const Variable first = grad(result, {mine}, {}, /*create_graph=*/true)[0];
  CHECK(equals_whole(first.data(), g.detach()));
  CHECK(equals_whole(grad(sum(first * first), {mine})[0].data(), h));
}

/// Checks a feed-forward block with divided hidden units, and one with gathered outputs.
void check_products() {
  const at::Tensor x = random(1, {4, 6}), up = random(2, {5, 6}), down = random(3, {6, 5}),
                   weights = random(4, {4, 6}), wide = random(5, {4, 5});

  // Hidden units are divided. The second matmul adds up the ranks' results.
  check_loss(
      [&](const Variable& v) {
        const Variable h = linear(copy_to_tensor_ranks(v * v), Variable(own_part(up, 0)));
        const Variable y = linear(h * h, Variable(own_part(down, 1).contiguous()));
        return sum(reduce_from_tensor_ranks(y) * Variable(weights));
      },
      [&](const at::Tensor& v) {
        const at::Tensor h = torch::linear(v * v, up);
        return (torch::linear(h * h, down) * weights).sum();
      },
      x);

  // In the second block, outputs are gathered.
  check_loss(
      [&](const Variable& v) {
        const Variable h = linear(copy_to_tensor_ranks(v * v), Variable(own_part(up, 0)));
        const Variable y = gather_from_tensor_ranks(h * h, cut_of_vocabulary(5));
        return sum(y * Variable(wide));
      },
      [&](const at::Tensor& v) {
        const at::Tensor h = torch::linear(v * v, up);
        return (h * h * wide).sum();
      },
      x);
}

/// Checks the loss of a vocabulary that the ranks can't divide equally, with ignored targets and
/// with large logits.
void check_cross_entropy() {
  const at::Tensor head = random(6, {7, 6}), targets = torch::tensor({0, 6, -100, 3, 2, 4});
  for (const double size : {1.0, 1e3}) {
    for (const double divisor : {0.0, 3.0}) {
      INFO(size << " " << divisor);
      const at::Tensor x = size * random(7, {6, 6});
      check_loss(
          [&](const Variable& v) {
            const Variable logits = linear(copy_to_tensor_ranks(v), Variable(own_part(head, 0)));
            return cross_entropy_of_tensor_ranks(logits, cut_of_vocabulary(7), targets, divisor);
          },
          [&](const at::Tensor& v) {
            const at::Tensor sum = torch::nn::functional::cross_entropy(
                torch::linear(v, head), targets,
                torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
            return sum / (divisor == 0 ? 5 : divisor);
          },
          x);
    }
  }
}

/// Checks the loss if all targets are ignored. Checks the errors for targets outside of the
/// vocabulary.
void check_targets_of_cross_entropy() {
  const Variable logits(own_part(random(6, {7, 3}), 0).t().contiguous());
  const auto loss_of = [&](const at::Tensor& targets) {
    return cross_entropy_of_tensor_ranks(logits, cut_of_vocabulary(7), targets, 0).data();
  };
  CHECK(loss_of(at::full({3}, -100, at::kLong)).item<float>() == 0);
  for (const int64_t wrong : {int64_t{7}, int64_t{-1}}) {
    const at::Tensor targets = torch::tensor({int64_t{0}, wrong, int64_t{-100}});
    CHECK_THROWS_WITH(loss_of(targets),
                      ContainsSubstring(str("target ", wrong, " ")) && ContainsSubstring("[0, 7)"));
  }
}

/// Checks rows of an embedding that is divided among ranks, and their gradients.
void check_embedding() {
  const at::Tensor table = random(8, {7, 3}), weights = random(9, {2, 4, 3}),
                   ids = torch::tensor({{0, 6, 3, 3}, {2, 4, 5, 1}});
  const at::Tensor whole = table.clone().requires_grad_();
  const at::Tensor rows = torch::embedding(whole, ids);
  const at::Tensor g = torch::autograd::grad({(rows * weights).sum()}, {whole})[0];

  const Variable part = Variable::parameter(own_part(table, 0).clone(), "part");
  part.leaf().cut = std::make_shared<TensorCut>(cut_of_vocabulary(7));
  const Variable mine = embedding_of_tensor_ranks(ids, part);
  CHECK(mine.data().equal(rows.detach()));
  backward(sum(mine * Variable(weights)));
  CHECK(equals_whole(part.grad(), own_part(g, 0)));
  CHECK_THROWS(embedding_of_tensor_ranks(torch::tensor({7}), part));
  CHECK_THROWS(embedding_of_tensor_ranks(torch::tensor({-1}), part));
}

// The next test case runs this one in one process per rank.
TEST_CASE("a rank checks the ops of tensor parallelism", "[.rank_of_tensor_ranks]") {
  const auto placement = placement_from_environment();
  REQUIRE(placement);
  DistConfig config;
  config.tensor = placement->size;
  join_world(*placement, config);
  check_products();
  check_cross_entropy();
  check_targets_of_cross_entropy();
  check_embedding();
  world().wait_for_all();
}

TEST_CASE("ops of tensor parallelism have the derivatives of complete tensors on 2 and 4 processes",
          "[tensor_ranks]") {
  for (const int ranks : {2, 4}) lathe::test::check_on_ranks(ranks, "[.rank_of_tensor_ranks]");
}

TEST_CASE("a part of a tensor has a share of each section, and joined parts give the tensor",
          "[tensor_ranks]") {
  const at::Tensor whole = torch::arange(2 * 13 * 3).view({2, 13, 3});
  for (const int64_t parts : {1, 2, 3}) {
    Tensors all;
    for (int64_t p = 0; p < parts; ++p) {
      const TensorCut cut{.dim = 1, .sections = {6, 7}, .part = p, .parts = parts};
      all.push_back(cut.part_of(whole));
      CHECK(cut.part_sizes(all[0].sizes(), p) == all.back().sizes().vec());
      CHECK(cut.full_sizes(all.back().sizes()) == whole.sizes().vec());
    }
    CHECK(TensorCut{.dim = 1, .sections = {6, 7}, .parts = parts}.join(all).equal(whole));
  }
  // The first of two parts of sections with 6 and 7 rows has the rows 0 to 2 and 6 to 8.
  const TensorCut first{.dim = 1, .sections = {6, 7}, .part = 0, .parts = 2};
  CHECK(first.part_of(whole).select(0, 0).select(1, 0).equal(torch::tensor({0, 3, 6, 18, 21, 24})));
}

TEST_CASE("all ranks divide the rows of the loss alike, whatever the vocabulary",
          "[tensor_ranks]") {
  for (const auto& [vocabulary, parts] : {std::pair<int64_t, int64_t>{50257, 3}, {67109, 2}}) {
    std::set<int64_t> rows;
    for (int64_t p = 0; p < parts; ++p) {
      const TensorCut cut{.dim = 0, .sections = {vocabulary}, .part = p, .parts = parts};
      const Variable weight =
          Variable::parameter(torch::zeros(cut.part_sizes({0, 1}, p)), "weight");
      weight.leaf().cut = std::make_shared<TensorCut>(cut);
      rows.insert(logit_rows_per_chunk(weight));
      CHECK(weight.size(0) * logit_rows_per_chunk(weight) <= int64_t{1} << 25);
    }
    CHECK(rows.size() == 1);
  }
}

const Kind tied_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 2\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"};
const Kind untied_gpt{.name = "gpt",
                      .data = "text",
                      .keys =
                          "n_layer = 2\nn_head = 4\nn_embd = 32\nblock_size = 12\ntie_weights = "
                          "false\nbias = false\n"};
const Kind small_llama{
    .name = "llama",
    .data = "text",
    .keys =
        "n_layer = 2\nn_head = 4\nn_kv_head = 2\nn_embd = 32\nblock_size = 12\nqk_norm = "
        "true\nlogit_softcap = 20\nn_inner = 51\n"};
const Kind gated_llama{.name = "llama",
                       .data = "text",
                       .keys =
                           "n_layer = 2\nn_head = 2\nn_embd = 32\nblock_size = 12\nactivation = "
                           "\"gelu\"\ntie_weights = false\n"};

const Words tensor_keys{"--train.grad_accum=2",     "--train.batch_size=4",
                        "--train.eval_batches=3",   "--dist.timeout=60",
                        "--checkpoint.interval=50", "--optim.lr=1e-3"};

TEST_CASE("a tensor-parallel run agrees with one process up to rounding", "[tensor_ranks]") {
  struct Cell {
    const Kind& kind;
    Words keys;
    double tolerance;
  };
  // In each of 50 steps, two processes add up sums of 32 to 128 terms in another order than one
  // process. The tolerance is 1e-6 in float32, and larger in bfloat16, which rounds more coarsely.
  const std::vector<Cell> cells{
      {tied_gpt, {"--optim.grad_clip=0.5", "--train.eval_interval=25"}, 1e-6},
      {untied_gpt, {"--memory.recompute=blocks"}, 1e-6},
      {small_llama, {"--train.eval_interval=25", "--optim.kind=sgd"}, 1e-6},
      {gated_llama, {"--amp.dtype=bf16"}, 2e-2},
      {untied_gpt, {"--amp.dtype=fp8", "--amp.fp8_edge_blocks=0"}, 2e-2},
      // The parts of n_inner and of the vocabulary have different sizes on the two ranks.
      // Newton-Schulz iterations amplify rounding.
      {small_llama, {"--optim.kind=muon", "--optim.muon_steps=3"}, 1e-5},
      {small_llama, {"--optim.kind=lamb"}, 1e-6},
      {tied_gpt, {"--optim.kind=lamb", "--train.kernels=aten", "--optim.weight_decay=0.1"}, 1e-6},
  };

  for (const Cell& cell : cells) {
    const TempFolder f;
    lathe::test::make_data(f);
    lathe::test::write_config(f, cell.kind);
    const Words all = with_keys(with_keys(tensor_keys, {"--train.steps=50"}), cell.keys);
    const Words cut = with_keys(all, {"--dist.tensor=2"});
    INFO(cell.kind.name << " " << cell.keys[0]);
    const auto train = [&](int ranks, const std::string& name, const Words& of) {
      const Finished done = train_on(f, ranks, "kind.toml", name, of);
      INFO(done.out << done.err);
      REQUIRE(done.code == 0);
      return results_of(f / ("runs/" + name), "step-00000050");
    };

    const std::string alone = train(1, "1", all), two = train(2, "2", cut);
    const auto difference = [&](const char* name) {
      return difference_between(f / "runs/1", f / "runs/2", name);
    };
    CHECK(numbers_of(f / "runs/1", "loss").size() == 50);
    CHECK(difference("loss") < cell.tolerance);
    CHECK(difference("val_loss") < cell.tolerance);
    CHECK(difference("grad_norm") < 10 * cell.tolerance);  // a gradient is a small difference of
                                                           // larger sums
    CHECK((two != alone));                                 // two processes add in another order
    // Neither additional data ranks nor sharding change a bit of the results.
    CHECK((train(4, "4", with_keys(cut, {"--dist.shard=gradients"})) == two));
  }
}

TEST_CASE("grids with four tensor ranks, or with all axes, agree with one process",
          "[tensor_ranks]") {
  struct Grid {
    int ranks;
    const Kind& kind;
    Words keys;
  };
  const std::vector<Grid> grids{
      {4, untied_gpt, {"--dist.tensor=4"}},
      {4, untied_gpt, {"--dist.tensor=4", "--dist.sequence_parallel=true"}},
      {8, small_llama, {"--dist.tensor=2", "--dist.context=2", "--dist.pipeline=2"}},
  };

  const TempFolder f;
  lathe::test::make_data(f);
  const Words all = with_keys(tensor_keys, {"--train.steps=6", "--train.eval_interval=3"});
  for (size_t i = 0; i < grids.size(); ++i) {
    const Grid& grid = grids[i];
    lathe::test::write_config(f, grid.kind);
    const auto train = [&](int ranks, const std::string& name, const Words& of) {
      const Finished done = train_on(f, ranks, "kind.toml", name, of);
      INFO(done.out << done.err);
      REQUIRE(done.code == 0);
      return f / ("runs/" + name);
    };

    INFO(grid.kind.name << " on " << grid.ranks << " processes, " << grid.keys.back());
    const fs::path alone = train(1, str("alone-", i), all),
                   many = train(grid.ranks, str("many-", i), with_keys(all, grid.keys));

    CHECK(numbers_of(alone, "loss").size() == 6);
    CHECK(difference_between(alone, many, "loss") < 1e-6);
    CHECK(difference_between(alone, many, "val_loss") < 1e-6);
  }
}

TEST_CASE("tensor-parallel checkpoints equal those of one process, and runs resume on any grid",
          "[tensor_ranks]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, small_llama);
  for (const std::string kind : {"adamw", "muon"}) {
    INFO(kind);
    const Words cut = with_keys(
        tensor_keys, {"--train.steps=9", "--dist.tensor=2", "--optim.kind=" + kind,
                      "--optim.ema_decay=0.9", "--amp.dtype=bf16", "--checkpoint.dtype=bf16"});
    const auto with = [&](const std::string& more) { return with_keys(cut, {more}); };
    const std::string whole = "whole_" + kind, moved = "moved_" + kind;
    REQUIRE(train_on(f, 2, "kind.toml", whole, cut).code == 0);
    REQUIRE(train_on(f, 4, "kind.toml", moved, with("--train.pause_at=3")).code == 75);
    REQUIRE(train_on(f, 2, "kind.toml", moved, with("--train.pause_at=6")).code == 75);
    REQUIRE(train_on(f, 4, "kind.toml", moved,
                     with_keys(cut, {"--dist.shard=optimizer", "--memory.offload=optimizer"}))
                .code == 0);
    check_same_tensors(f / "runs" / whole, f / "runs" / moved, "step-00000009");
  }

  // With lr = 0, a step changes no weight, so two processes must write the same file as one
  // process.
  const Words still = with_keys(
      tensor_keys, {"--optim.kind=sgd", "--optim.lr=0", "--train.steps=2", "--checkpoint.keep=5"});
  REQUIRE(train_on(f, 1, "kind.toml", "still", with_keys(still, {"--train.pause_at=1"})).code ==
          75);
  const Finished last = train_on(f, 2, "kind.toml", "still", with_keys(still, {"--dist.tensor=2"}));
  INFO(last.out << last.err);
  REQUIRE(last.code == 0);
  const auto model = [&](const char* step) {
    return lathe::test::tensors_of(f / "runs/still/checkpoints" / step, CheckpointPart::model);
  };
  CHECK(model("step-00000001").size() > 1000);
  CHECK((model("step-00000001") == model("step-00000002")));
  const Finished evaluated = lathe::test::run(
      {.binary = "lathe", .args = {"eval", "runs/still"}, .folder = f.path(), .environment = {}});
  CHECK(evaluated.code == 0);
}

TEST_CASE("weights of another tensor rank that are not finite are never saved", "[tensor_ranks]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, gated_llama);
  const Words once = with_keys(tensor_keys, {"--train.steps=1", "--train.eval_interval=0"});
  REQUIRE(train_on(f, 1, "kind.toml", "source", with_keys(once, {"--model.vocab_size=300"})).code ==
          0);

  // No token of the text uses the last row of the embedding, so only weight decay changes this row.
  // It becomes -9 times its value.
  const fs::path checkpoint = f / "runs/source/checkpoints/step-00000001";
  const auto set_last_row = [&](double value) {
    std::vector<at::Tensor> held;
    std::vector<TensorEntry> entries;
    {
      const SafetensorsFile file(checkpoint / "model.safetensors");
      for (const TensorEntry& entry : file.tensors()) {
        at::Tensor t = entry_tensor(entry, entry.shape, "").clone();
        if (entry.name == "tokens.weight") t.select(0, 299).fill_(value);
        entries.push_back(make_entry(entry.name, held.emplace_back(t)));
      }
    }
    write_safetensors(checkpoint / "model.safetensors", entries);
    lathe::test::update_manifest(checkpoint);
  };
  for (const bool is_finite : {true, false}) {
    INFO(is_finite);
    set_last_row(is_finite ? 1 : 3e38);
    const std::string name = is_finite ? "finite" : "infinite";
    const Finished done = train_on(
        f, 2, "kind.toml", name,
        with_keys(once, {"--train.init_from=runs/source", "--dist.tensor=2", "--optim.lr=10",
                         "--optim.weight_decay=1", "--optim.kind=adamw"}));
    INFO(done.out << done.err);
    CHECK(done.code == (is_finite ? 0 : 5));
    CHECK(fs::exists(f / "runs" / name / "checkpoints/step-00000001") == is_finite);
    if (!is_finite) CHECK_THAT(done.err, ContainsSubstring("tokens.weight"));
  }
}

TEST_CASE("tensor-parallel runs use the memory and send the bytes that plan forecasts",
          "[tensor_ranks]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f,
                            {.name = "gpt",
                             .data = "text",
                             .keys = "n_layer = 4\nn_head = 2\nn_embd = 128\nblock_size = 12\n"});
  const Words all = with_keys(tensor_keys, {"--train.steps=2", "--train.eval_interval=0"});
  std::vector<double> memory;
  for (const char* tensor : {"1", "2"}) {
    const Words own = with_keys(all, {std::string("--dist.tensor=") + tensor});
    REQUIRE(train_on(f, 2, "kind.toml", tensor, own).code == 0);
    memory.push_back(lathe::test::check_forecast(f, 2, own, f / "runs" / tensor));
  }
  // Selective recomputation keeps results that fit into unused memory, both in a run and in its
  // forecast.
  const Words selective = with_keys(all, {"--dist.tensor=2", "--memory.recompute=selective"});
  REQUIRE(train_on(f, 2, "kind.toml", "selective", selective).code == 0);
  CHECK(lathe::test::plan_of(f, 2, "kind.toml", selective).at("tensors_mb").get<double>() *
            (1 << 20) ==
        Approx(lathe::test::first_rank_stats(f / "runs/selective").at("memory_bytes").get<double>())
            .epsilon(0.01));

  // Each rank has half of the 4 x 12 x 128^2 elements, which take 16 bytes each.
  CHECK(memory[0] - memory[1] > 0.9 * 8 * 4 * 12 * 128 * 128);
}

TEST_CASE("dist.tensor is refused if a layer or an optimizer can't be divided", "[tensor_ranks]") {
  struct Refused {
    std::string model;
    Overrides keys;
    std::string message;
  };
  const std::string small = "n_layer = 2\nn_head = 4\nn_embd = 32\nblock_size = 8\n";
  const std::vector<Refused> cases{
      {"kind = \"gpt\"\n" + small, {}, ""},  // accepted
      {"kind = \"gpt\"\n" + small, {{"dist.tensor", "3"}}, "4 heads"},
      {"kind = \"llama\"\nn_kv_head = 1\n" + small, {}, "model.n_kv_head"},
      {"kind = \"llama\"\nqk_norm = true\nqk_norm_over = \"projection\"\n" + small,
       {},
       "qk_norm_over"},
      {"kind = \"mlp\"\n", {}, "\"mlp\""},
      {"kind = \"gpt\"\n" + small,
       {{"memory.offload", "parameters"},
        {"memory.recompute", "blocks"},
        {"memory.update_in_backward", "true"}},
       "memory.offload"},
      {"kind = \"gpt\"\n" + small, {{"memory.update_in_backward", "true"}}, "update_in_backward"},
  };
  const TempFolder f;
  for (const Refused& c : cases) {
    lathe::test::write_file(f / "a.toml",
                            "[model]\n" + c.model + "[data]\ndir = \"x\"\n[dist]\ntensor = 2\n");
    const std::string got =
        error_of([&] { check_tensor_ranks(load_config((f / "a.toml").string(), c.keys), 2); });
    INFO(c.model << c.message << ": " << got);
    if (c.message.empty())
      CHECK(got.empty());
    else
      CHECK_THAT(got, ContainsSubstring("dist.tensor") && ContainsSubstring(c.message));
  }

  lathe::test::make_data(f);
  lathe::test::write_config(f, tied_gpt);
  for (const char* kind : {"adafactor", "adam8bit"}) {
    const Finished done =
        train_on(f, 2, "kind.toml", kind,
                 with_keys(tensor_keys, {"--dist.tensor=2", str("--optim.kind=", kind)}));
    CHECK(done.code == 2);
    CHECK_THAT(done.err, ContainsSubstring(str("optim.kind = \"", kind, "\"")) &&
                             ContainsSubstring("dist.tensor"));
    CHECK(!fs::exists(f / str("runs/", kind)));
  }
  const Finished three =
      train_on(f, 3, "kind.toml", "three", with_keys(tensor_keys, {"--dist.tensor=2"}));
  CHECK(three.code == 2);
  CHECK_THAT(three.err, ContainsSubstring("dist.tensor = 2") && ContainsSubstring("3 processes"));
}

TEST_CASE("dist.tensor is checked against the model of train.init_from", "[tensor_ranks]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, {.name = "gpt",
                                .data = "text",
                                .keys = "n_layer = 1\nn_head = 3\nn_embd = 24\nblock_size = 12\n"});
  REQUIRE(train_on(f, 1, "kind.toml", "source", tensor_keys).code == 0);

  // The default number of heads in [model] is 4, which 2 tensor ranks can divide and 3 can't.
  lathe::test::write_config(f, {.name = "gpt", .data = "text", .keys = ""});
  const auto on = [&](int ranks, const std::string& name) {
    return train_on(f, ranks, "kind.toml", name,
                    with_keys(tensor_keys, {"--train.grad_accum=1", "--train.init_from=runs/source",
                                            str("--dist.tensor=", std::max(ranks, 2))}));
  };
  const Finished two = on(2, "two");
  CHECK(two.code == 2);
  CHECK_THAT(two.err, ContainsSubstring("dist.tensor = 2") && ContainsSubstring("3 heads"));
  CHECK(!fs::exists(f / "runs/two"));
  CHECK(on(3, "three").code == 0);

  // A run on a single process ignores the key. Commands that read the run's checkpoint also ignore
  // it.
  REQUIRE(on(1, "alone").code == 0);
  for (const char* command : {"eval", "verify", "inspect"})
    CHECK(lathe::test::lathe_in(f, {command, "runs/alone"}).code == 0);
}

TEST_CASE("a layer that is too small for the tensor ranks is refused by its name",
          "[tensor_ranks]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(
      f, {.name = "llama",
          .data = "text",
          .keys = "n_layer = 1\nn_head = 2\nn_embd = 8\nblock_size = 12\nn_inner = 1\n"});
  const Finished done =
      train_on(f, 2, "kind.toml", "small", with_keys(tensor_keys, {"--dist.tensor=2"}));
  CHECK(done.code == 2);
  CHECK_THAT(done.err, ContainsSubstring("dist.tensor = 2: blocks.0.mlp.gate.weight"));
  CHECK(!fs::exists(f / "runs/small"));
}

}  // namespace
