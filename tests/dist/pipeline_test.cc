// Tests of pipeline parallelism: its schedule, its stages, and runs on several stages, which are
// bitwise equal to runs on one process.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "dist/stage_parameters.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "train/config/run_config.h"
#include "train/step/pipeline_step.h"
#include "train/step/shares.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

TEST_CASE("a stage runs each micro-batch forward and then backward, with few in flight",
          "[pipeline]") {
  using Passes = std::vector<StagePass>;
  CHECK((stage_schedule(0, 1, 1, 2) == Passes{{0, false}, {0, true}, {1, false}, {1, true}}));
  CHECK((stage_schedule(0, 2, 1, 3) ==
         Passes{{0, false}, {1, false}, {0, true}, {2, false}, {1, true}, {2, true}}));
  CHECK((stage_schedule(1, 2, 1, 2) == stage_schedule(0, 1, 1, 2)));

  for (const int stages : {1, 2, 3, 8}) {
    for (const int64_t micro_batches : {1, 2, 3, 8, 9}) {
      for (int stage = 0; stage < stages; ++stage) {
        INFO("stage " << stage << " of " << stages << ", " << micro_batches << " micro-batches");
        int64_t forward = 0, backward = 0, most = 0;
        for (const StagePass& pass : stage_schedule(stage, stages, 1, micro_batches)) {
          CHECK(pass.micro_batch == (pass.is_backward ? backward : forward)++);
          CHECK(backward <= forward);
          most = std::max(most, forward - backward);
        }
        CHECK(forward == micro_batches);
        CHECK(backward == micro_batches);
        CHECK(most == std::min<int64_t>(stages - stage, micro_batches));
      }
    }
  }
}

/// Simulates the schedules of all stages, with one unit of time per pass. A pass waits for its
/// input. A pass that sends a gradient also waits until the other stages have received all but one
/// of the gradients that its stage sent before. Returns the time at which the last pass ends, or -1
/// for a deadlock.
int64_t time_of_schedules(int stages, int parts, int64_t micro_batches) {
  using Message = std::pair<int64_t, int>;  // micro-batch, sending part (counted over all stages)
  const int last = stages * parts - 1;
  std::vector<std::vector<StagePass>> left;
  for (int s = 0; s < stages; ++s) {
    left.push_back(stage_schedule(s, stages, parts, micro_batches));
    std::reverse(left.back().begin(), left.back().end());
  }
  std::set<Message> activations, gradients, received;
  std::vector<std::vector<Message>> sent(left.size());  // gradients of each stage

  for (int64_t time = 0;; ++time) {
    if (std::all_of(left.begin(), left.end(), [](const auto& l) { return l.empty(); })) return time;
    std::vector<int> ready;
    for (int s = 0; s < stages; ++s) {
      if (left[s].empty()) continue;
      const auto [n, is_backward, part] = left[s].back();
      const int of_all = part * stages + s;
      const auto is_unreceived = [&](const Message& m) { return received.count(m) == 0; };
      const bool waits = is_backward
                             ? (of_all < last && gradients.count({n, of_all + 1}) == 0) ||
                                   std::count_if(sent[s].begin(), sent[s].end(), is_unreceived) > 1
                             : of_all > 0 && activations.count({n, of_all - 1}) == 0;
      if (!waits) ready.push_back(s);
    }
    if (ready.empty()) return -1;

    for (const int s : ready) {
      const auto [n, is_backward, part] = left[s].back();
      left[s].pop_back();
      const int of_all = part * stages + s;
      (is_backward ? gradients : activations).insert({n, of_all});
      if (is_backward && of_all < last) received.insert({n, of_all + 1});
      if (is_backward && of_all > 0) sent[s].push_back({n, of_all});
    }
  }
}

TEST_CASE("virtual stages are interleaved, and shorten the pipeline bubble", "[pipeline]") {
  using Passes = std::vector<StagePass>;
  CHECK((stage_schedule(1, 2, 2, 2) == Passes{{0, false, 0},
                                              {1, false, 0},
                                              {0, false, 1},
                                              {0, true, 1},
                                              {1, false, 1},
                                              {1, true, 1},
                                              {0, true, 0},
                                              {1, true, 0}}));

  for (const int stages : {2, 3, 4, 8}) {
    for (const int parts : {1, 2, 3, 4}) {
      for (const int64_t micro_batches : {stages, 2 * stages, 5 * stages}) {
        INFO(stages << " stages of " << parts << " parts, " << micro_batches << " micro-batches");
        for (int stage = 0; stage < stages; ++stage) {
          // Each part of a stage runs the micro-batches in order, both forward and backward.
          std::map<std::pair<int, bool>, int64_t> next;
          for (const StagePass& p : stage_schedule(stage, stages, parts, micro_batches))
            CHECK(p.micro_batch == next[{p.part, p.is_backward}]++);
          CHECK(std::ssize(next) == 2 * parts);
          for (const auto& [of, count] : next) CHECK(count == micro_batches);
        }

        // Each pass of a part takes one unit of time, so a stage waits 2 (stages - 1) units for any
        // number of parts.
        CHECK(time_of_schedules(stages, parts, micro_batches) ==
              2 * micro_batches * parts + 2 * (stages - 1));
      }
    }
  }
}

/// A message between stages: the micro-batch, the sending part (counted over all stages), and
/// whether it is a gradient.
using Sent = std::tuple<int64_t, int, bool>;

TEST_CASE("each of two stages receives in the order in which the other sends", "[pipeline]") {
  for (const int parts : {1, 2, 3, 8}) {
    for (const int64_t micro_batches : {2, 4, 10}) {
      INFO(parts << " parts, " << micro_batches << " micro-batches");
      const int last = 2 * parts - 1;
      std::vector<std::vector<Sent>> sent(2), received(2);
      for (const int stage : {0, 1}) {
        for (const auto& [n, is_backward, part] : stage_schedule(stage, 2, parts, micro_batches)) {
          const int own = 2 * part + stage;
          const int from = is_backward ? own + 1 : own - 1;
          if (is_backward ? own > 0 : own < last) sent[stage].push_back({n, own, is_backward});
          if (is_backward ? own < last : own > 0) received[stage].push_back({n, from, is_backward});
        }
      }
      CHECK((sent[0] == received[1]));
      CHECK((sent[1] == received[0]));
      CHECK(std::ssize(sent[0]) == micro_batches * (2 * parts - 1));
    }
  }
}

/// Returns the cost of the most expensive stage. `after` is the cost of the layers after the last
/// block.
double largest_cost(const std::vector<double>& costs, double after,
                    const std::vector<int64_t>& cuts) {
  double largest = 0;
  for (size_t s = 0; s + 1 < cuts.size(); ++s) {
    double cost = s + 2 == cuts.size() ? after : 0;
    for (int64_t i = cuts[s]; i < cuts[s + 1]; ++i) cost += costs[static_cast<size_t>(i)];
    largest = std::max(largest, cost);
  }
  return largest;
}

/// Tries all ways to cut block cuts.back() and all later blocks into `stages` stages, and returns
/// the smallest cost that the most expensive stage can have.
double least_cost(const std::vector<double>& costs, double after, std::vector<int64_t> cuts,
                  int stages) {
  const auto n = std::ssize(costs);
  if (stages == 1) {
    cuts.push_back(n);
    return largest_cost(costs, after, cuts);
  }
  double least = 1e300;
  for (int64_t end = cuts.back() + 1; end + stages - 1 <= n; ++end) {
    std::vector<int64_t> next = cuts;
    next.push_back(end);
    least = std::min(least, least_cost(costs, after, next, stages - 1));
  }
  return least;
}

TEST_CASE("blocks are cut into stages so that the most expensive one costs the least",
          "[pipeline]") {
  const std::vector<std::vector<double>> models{
      {1, 1, 1, 1, 1, 1, 1}, {5, 1, 1, 1, 1, 4}, {1, 2, 3, 4, 5, 6, 7, 8}, {3}};
  for (const std::vector<double>& costs : models) {
    for (const double after : {0.0, 2.5, 100.0}) {
      for (int stages = 1; stages <= std::min<int>(4, static_cast<int>(costs.size())); ++stages) {
        const std::vector<int64_t> cuts = cut_into_stages(costs, after, stages);
        REQUIRE(std::ssize(cuts) == stages + 1);
        CHECK(cuts.front() == 0);
        CHECK(cuts.back() == std::ssize(costs));
        CHECK(std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()) == cuts.end());
        CHECK(largest_cost(costs, after, cuts) == least_cost(costs, after, {0}, stages));
      }
    }
  }
}

const Kind staged_gpt{.name = "gpt",
                      .data = "text",
                      .keys =
                          "n_layer = 4\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = "
                          "0.1\ntie_weights = false\n"};
const Kind tied_staged_gpt{.name = "gpt",
                           .data = "text",
                           .keys = "n_layer = 3\nn_head = 2\nn_embd = 32\nblock_size = 12\n"};
const Kind untied_llama{.name = "llama",
                        .data = "text",
                        .keys =
                            "n_layer = 3\nn_head = 4\nn_kv_head = 2\nn_embd = 32\nblock_size = "
                            "12\ndropout = 0.1\nqk_norm = true\ntie_weights = false\n"};
const Kind layered_mlp{
    .name = "mlp", .data = "numbers", .keys = "n_layer = 3\nn_hidden = 16\ndropout = 0.1\n"};

const Words pipeline_keys{"--train.steps=6",        "--train.grad_accum=4",
                          "--train.batch_size=4",   "--train.eval_interval=3",
                          "--train.eval_batches=3", "--checkpoint.interval=6",
                          "--dist.timeout=60"};

/// Trains on `ranks` processes in `stages` stages, and returns the results of the run.
std::string results(const TempFolder& f, const std::string& name, int ranks, int stages,
                    const Words& of) {
  const Finished done =
      train_on(f, ranks, "kind.toml", name, with_keys(of, {str("--dist.pipeline=", stages)}));
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  return results_of(f / ("runs/" + name), "step-00000006");
}

TEST_CASE("runs are bitwise equal on any number of stages", "[pipeline]") {
  struct Cell {
    const Kind& kind;
    Words keys;
    std::vector<std::pair<int, int>> layouts;  // pairs of processes and stages
  };

  // The cases cover precisions, optimizers and keys of [memory]. The next test covers a tied
  // embedding.
  const std::vector<Cell> cells{
      {staged_gpt, {"--optim.grad_clip=0.5", "--memory.saved=bf16"}, {{2, 2}, {4, 4}, {4, 2}}},
      {staged_gpt,
       {"--dist.virtual_stages=2", "--amp.dtype=bf16", "--optim.kind=muon",
        "--memory.recompute=selective"},
       {{2, 2}, {4, 2}}},
      {staged_gpt,
       {"--dist.virtual_stages=2", "--amp.dtype=fp16", "--amp.scaler=dynamic",
        "--amp.loss_scale=16777216", "--dist.shard=optimizer", "--optim.kind=adam8bit",
        "--train.grad_accum=8"},
       {{2, 2}, {4, 2}}},
      {staged_gpt,
       {"--amp.dtype=fp8", "--optim.kind=adafactor", "--train.grad_accum=1",
        "--dist.stage_blocks=1,3"},
       {{2, 2}}},
      {untied_llama,
       {"--amp.dtype=bf16", "--optim.kind=muon", "--memory.recompute=selective"},
       {{3, 3}, {4, 2}}},
      {untied_llama,
       {"--amp.dtype=fp16", "--amp.scaler=dynamic", "--amp.loss_scale=16777216",
        "--optim.kind=adam8bit", "--optim.ema_decay=0.9", "--memory.recompute=blocks"},
       {{2, 2}}},
      // In this case, the last stages recompute nothing.
      {layered_mlp,
       {"--optim.kind=sgd", "--train.spike_sigma=3", "--memory.recompute=blocks.0-0"},
       {{3, 3}}},
  };

  for (const Cell& cell : cells) {
    const TempFolder f;
    lathe::test::make_data(f);
    lathe::test::write_config(f, cell.kind);
    const Words all = with_keys(pipeline_keys, cell.keys);
    const std::string alone = results(f, "alone", 1, 1, all);

    for (const auto& [ranks, stages] : cell.layouts) {
      INFO(cell.kind.name << " " << cell.keys[0] << ": " << ranks << " processes, " << stages
                          << " stages");
      CHECK((results(f, str(ranks, "-", stages), ranks, stages, all) == alone));
    }
  }
}

TEST_CASE("with a tied embedding, stages agree with one process up to rounding", "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, tied_staged_gpt);
  const Words all = with_keys(pipeline_keys, {"--train.steps=50", "--checkpoint.interval=50",
                                              "--train.log_interval=1", "--optim.lr=1e-3"});
  const auto train = [&](const std::string& name, int ranks, int stages) {
    const Finished done =
        train_on(f, ranks, "kind.toml", name, with_keys(all, {str("--dist.pipeline=", stages)}));
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
    return results_of(f / ("runs/" + name), "step-00000050");
  };
  const std::string alone = train("1", 1, 1), two = train("2", 2, 2);
  CHECK((two != alone));  // gradients of the embedding and of the head are summed separately
  CHECK((train("3", 3, 3) == two));
  CHECK((train("4", 4, 2) == two));

  const std::vector<double> a = numbers_of(f / "runs/1", "loss"),
                            b = numbers_of(f / "runs/2", "loss");
  REQUIRE(a.size() == 50);
  REQUIRE(b.size() == 50);
  // The tolerance allows for float32 sums of four gradients in another order.
  for (size_t i = 0; i < a.size(); ++i) CHECK(b[i] == Approx(a[i]).epsilon(1e-6));
}

TEST_CASE("with dist.tensor, runs on one and on two stages are bitwise equal", "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, staged_gpt);
  const Words cut = with_keys(pipeline_keys, {"--dist.tensor=2"});
  const std::string one = results(f, "1", 2, 1, cut);
  CHECK((results(f, "2", 4, 2, cut) == one));
  CHECK((results(f, "3", 8, 2, cut) == one));

  // Even if the number of tensor ranks does not divide the vocabulary, all ranks cut the model into
  // the same stages.
  lathe::test::write_config(f, {.name = "gpt",
                                .data = "text",
                                .keys = "n_layer = 4\nn_head = 2\nn_embd = 32\nblock_size = 12\n"
                                        "vocab_size = 403\ntie_weights = false\n"});
  CHECK((results(f, "5", 4, 2, cut) == results(f, "4", 2, 1, cut)));
}

TEST_CASE("a run resumes on other stages, with the same bits", "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, staged_gpt);
  const Words all = with_keys(pipeline_keys, {"--optim.kind=muon", "--amp.dtype=bf16"});
  results(f, "whole", 1, 1, all);

  const auto until = [&](int step, int ranks, int stages) {
    const Words some =
        with_keys(all, {str("--train.pause_at=", step), str("--dist.pipeline=", stages)});
    CHECK(train_on(f, ranks, "kind.toml", "moved", some).code == 75);
  };
  until(2, 4, 4);
  until(3, 1, 1);
  until(5, 4, 2);
  results(f, "moved", 2, 2, with_keys(all, {"--dist.virtual_stages=2"}));
  check_same_tensors(f / "runs/whole", f / "runs/moved", "step-00000006");
}

/// Returns the numbers of blocks of the stages in a plan.
std::vector<int64_t> planned_blocks(const Json& plan) {
  std::vector<int64_t> blocks;
  for (const Json& stage : plan.at("stages")) blocks.push_back(stage.at("blocks"));
  return blocks;
}

TEST_CASE("stages have similar FLOPs, and dist.stage_blocks sets their numbers of blocks",
          "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  // The head has as many parameters as three blocks. In short rows, this is also the ratio of their
  // FLOPs. In long rows, attention takes most FLOPs of the blocks.
  lathe::test::write_config(
      f, {.name = "gpt",
          .data = "text",
          .keys = "n_layer = 9\nn_head = 2\nn_embd = 32\nblock_size = 4096\nvocab_size = 1152\n"});
  const auto plan = [&](const Words& keys) {
    return lathe::test::plan_of(f, 2, "kind.toml",
                                with_keys({"--train.grad_accum=2", "--train.batch_size=1"}, keys));
  };
  using Blocks = std::vector<int64_t>;
  CHECK(planned_blocks(plan({"--dist.pipeline=2", "--model.block_size=16"})) == Blocks{6, 3});
  CHECK(planned_blocks(plan({"--dist.pipeline=2", "--data.window=16"})) == Blocks{6, 3});
  CHECK(planned_blocks(plan({"--dist.pipeline=2"})) == Blocks{5, 4});
  CHECK(planned_blocks(plan({"--dist.pipeline=1"})).empty());

  const Json given = plan({"--dist.pipeline=2", "--dist.stage_blocks=2,7"});
  CHECK(planned_blocks(given) == Blocks{2, 7});
  const Json& stages = given.at("stages");
  CHECK(stages[1].at("flops") > 3 * stages[0].at("flops").get<double>());
  CHECK(stages[1].at("peak_rss_mb") > stages[0].at("peak_rss_mb"));
  CHECK(stages[1].at("peak_rss_mb") == given.at("peak_rss_mb"));

  // Part p belongs to stage p % 2.
  CHECK(planned_blocks(plan({"--dist.pipeline=2", "--dist.virtual_stages=2", "--data.window=16",
                             "--dist.stage_blocks=1,2,5,1"})) == Blocks{6, 3});
}

TEST_CASE("stages use the memory and send the bytes that plan forecasts", "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, {.name = "gpt",
                                .data = "text",
                                .keys = "n_layer = 4\nn_head = 2\nn_embd = 128\nblock_size = "
                                        "12\ntie_weights = false\n"});
  // The second step's peak includes the save after the first step. The save collects one tensor at
  // a time.
  const Words all = with_keys(
      pipeline_keys, {"--train.steps=2", "--train.eval_interval=0", "--checkpoint.interval=1"});
  std::vector<double> memory;
  for (const Words& keys : {Words{"--dist.pipeline=1"},
                            {"--dist.pipeline=2"},
                            {"--dist.pipeline=2", "--dist.virtual_stages=2"}}) {
    const Words own = with_keys(all, keys);
    const std::string name = keys.back().substr(7);
    REQUIRE(train_on(f, 2, "kind.toml", name, own).code == 0);
    const Json forecast = lathe::test::plan_of(f, 2, "kind.toml", own);
    const Json figures = lathe::test::first_rank_stats(f / "runs" / name);
    INFO(name);
    memory.push_back(figures.at("memory_bytes"));
    CHECK(forecast.at("tensors_mb").get<double>() * (1 << 20) ==
          Approx(memory.back()).epsilon(0.02));
    // The forecast excludes the headers that are sent with activations.
    CHECK(forecast.at("sent_bytes_per_step").get<double>() ==
          Approx(figures.at("sent_bytes").get<double>()).epsilon(0.01));
  }
  // A stage is idle for 1 unit of time if it has one part, and for 1/2 unit if it has two. Its two
  // micro-batches take one unit each.
  const auto bubble = [&](const char* parts) {
    const Words own = with_keys(all, {"--dist.pipeline=2", "--train.grad_accum=2",
                                      std::string("--dist.virtual_stages=") + parts});
    return lathe::test::plan_of(f, 2, "kind.toml", own).at("pipeline_bubble").get<double>();
  };
  CHECK(bubble("1") == Approx(1 / (2 + 1.0)));
  CHECK(bubble("2") == Approx(0.5 / (2 + 0.5)));
  // Each stage has half of the 4 x 12 x 128^2 elements, which take 16 bytes each.
  CHECK(memory[0] - memory[1] > 0.9 * 8 * 4 * 12 * 128 * 128);

  // The first stage also receives the last stage's gradient of the tied embedding. This gradient is
  // the largest tensor here.
  const Words tied = with_keys(all, {"--dist.pipeline=2", "--model.tie_weights=true",
                                     "--model.vocab_size=5000", "--train.grad_accum=2"});
  REQUIRE(train_on(f, 2, "kind.toml", "tied", tied).code == 0);
  CHECK(lathe::test::plan_of(f, 2, "kind.toml", tied).at("tensors_mb").get<double>() * (1 << 20) ==
        Approx(lathe::test::first_rank_stats(f / "runs/tied").at("memory_bytes").get<double>())
            .epsilon(0.02));
}

TEST_CASE("plan forecasts the memory of stages whose input is smaller than the model's",
          "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(
      f, {.name = "mlp", .data = "numbers", .keys = "n_layer = 3\nn_hidden = 64\n"});
  const Words all = with_keys(pipeline_keys, {"--train.batch_size=256", "--dist.pipeline=3"});
  const Finished run = train_on(f, 3, "kind.toml", "run", all);
  INFO(run.out << run.err);
  REQUIRE(run.code == 0);
  CHECK(lathe::test::plan_of(f, 3, "kind.toml", all).at("tensors_mb").get<double>() * (1 << 20) ==
        Approx(lathe::test::first_rank_stats(f / "runs/run").at("memory_bytes").get<double>())
            .epsilon(0.05));
}

/// Returns five parameters that are filled with ones: a table, three blocks and a head.
std::vector<NamedParameter> three_blocks() {
  const auto parameter = [](const char* path, int64_t block) {
    return NamedParameter{path, Variable::parameter(torch::ones({1000})), Role::bias, block};
  };
  return {parameter("table", -1), parameter("blocks.0", 0), parameter("blocks.1", 1),
          parameter("blocks.2", 2), parameter("head", -1)};
}

/// Returns the first element of each parameter, or NaN for a parameter without memory.
std::vector<double> firsts(const std::vector<NamedParameter>& parameters) {
  std::vector<double> all;
  for (const NamedParameter& p : parameters) {
    const auto* data = static_cast<const float*>(p.parameter.data().storage().data());
    all.push_back(data != nullptr ? data[0] : std::nan(""));
  }
  return all;
}

// The next test case runs this one in one process per rank.
TEST_CASE("a rank checks which parameters its stage keeps", "[.rank_of_stages]") {
  const auto placement = placement_from_environment();
  REQUIRE(placement);
  DistConfig config;
  config.pipeline = 3;
  join_world(*placement, config);
  const int rank = world().rank();

  for (const bool is_tied : {false, true}) {
    CAPTURE(rank, is_tied);
    const std::vector<NamedParameter> parameters = three_blocks();
    const Leaf* const head = parameters[is_tied ? 0 : parameters.size() - 1].parameter.as_leaf();
    StageParameters stage(world(), parameters, {0, 1, 2, 3}, head);
    stage.free_foreign_parameters();
    for (const NamedParameter& p : stage.local()) {
      const NoGrad no_grad;
      p.parameter.data().fill_(10 + rank);
    }
    stage.publish_update();

    // The last stage got the updated table if it uses the table.
    const bool has_table = rank == 0 || (is_tied && rank == 2);
    CHECK(std::ssize(stage.local()) == (rank == 1 ? 1 : 2) + (is_tied && rank == 2 ? 1 : 0));
    const std::vector<double> mine = firsts(parameters);
    CHECK(mine[0] == (has_table ? 10 : 0));
    CHECK(mine[4] == (rank == 2 ? 12 : 0));
    for (int block = 0; block < 3; ++block) {
      const double value = mine[static_cast<size_t>(block) + 1];
      CHECK((block == rank ? value == 10 + rank : std::isnan(value)));
    }
    {
      const StageParameters::Gathered gathered(&stage);
      CHECK((firsts(parameters) == std::vector<double>{10, 10, 11, 12, 12}));
    }
    CHECK(firsts(parameters)[0] == (has_table ? 10 : 0));

    // If a stage has a gradient of a parameter that belongs to another stage, this gradient would
    // be lost, so it is an error.
    if (is_tied) continue;
    for (const size_t i : {0, 4}) {
      if (mine[i] == 0) parameters[i].parameter.leaf().grad = torch::ones({1000});
    }
    CHECK_THROWS_WITH(stage.sum_gradients(), ContainsSubstring(str("stage ", rank, " ")) &&
                                                 ContainsSubstring(rank == 0 ? "head" : "table"));
  }
  world().wait_for_all();
}

TEST_CASE("a stage keeps the parameters that it uses, and no other parameters", "[pipeline]") {
  lathe::test::check_on_ranks(3, "[.rank_of_stages]");
}

TEST_CASE("plan forecasts the memory of keys that collect all parameters of a pipeline",
          "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f,
                            {.name = "gpt",
                             .data = "text",
                             .keys = "n_layer = 4\nn_head = 2\nn_embd = 256\nblock_size = 12\n"});
  const Words keys = with_keys(
      pipeline_keys, {"--train.steps=2", "--train.eval_interval=0", "--train.batch_size=1",
                      "--train.grad_accum=2", "--dist.pipeline=2"});
  // The forecast does not count the tensors of the statistics that log.layers computes.
  for (const auto& [more, tolerance] :
       {std::pair("--train.sample_interval=1", 0.05), {"--log.layers=1", 0.1}}) {
    const Words own = with_keys(with_keys(keys, {"--checkpoint.interval=1"}), {more});
    REQUIRE(train_on(f, 2, "kind.toml", more + 2, own).code == 0);
    INFO(more);
    CHECK(
        lathe::test::plan_of(f, 2, "kind.toml", own).at("tensors_mb").get<double>() * (1 << 20) ==
        Approx(
            lathe::test::first_rank_stats(f / "runs" / (more + 2)).at("memory_bytes").get<double>())
            .epsilon(tolerance));
  }
}

TEST_CASE("weights of another stage that are not finite are never saved", "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, staged_gpt);
  const std::string config = lathe::test::slurp(f / "kind.toml");
  const Words keys =
      with_keys(pipeline_keys, {"--train.steps=1", "--train.eval_interval=0", "--dist.pipeline=2"});
  for (const char* scale : {"1", "1e30"}) {  // with 1, the weights stay finite
    lathe::test::write_file(f / "kind.toml",
                            config +
                                "[[optim.groups]]\nmatch = \"blocks.3.*\"\nlr_scale "
                                "= " +
                                scale + "\n");
    const Finished done = train_on(f, 2, "kind.toml", scale, with_keys(keys, {"--optim.lr=1e9"}));
    INFO(done.out << done.err);
    const bool is_finite = std::string(scale) == "1";
    CHECK(done.code == (is_finite ? 0 : 5));
    CHECK(fs::exists(f / "runs" / scale / "checkpoints/step-00000001") == is_finite);
    if (!is_finite) CHECK_THAT(done.err, ContainsSubstring("blocks.3."));
  }
}

TEST_CASE("every stage warns about its weights beyond the range of checkpoint.dtype",
          "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, staged_gpt);
  const Words keys = with_keys(
      pipeline_keys, {"--train.steps=1", "--train.eval_interval=0", "--dist.pipeline=2",
                      "--schedule.kind=constant", "--optim.lr=1e6", "--checkpoint.dtype=fp16"});
  const Finished done = train_on(f, 2, "kind.toml", "run", keys);
  INFO(done.out << done.err);
  CHECK(done.code == 0);
  for (const char* name : {"blocks.0.", "blocks.3."})
    CHECK_THAT(done.err, ContainsSubstring(name) && ContainsSubstring("checkpoint.dtype"));
}

TEST_CASE("dist.pipeline is refused if a model or another key excludes it", "[pipeline]") {
  const TempFolder f;
  lathe::test::make_data(f);
  lathe::test::write_config(f, staged_gpt);
  struct Refused {
    int ranks;
    Words keys;
    Words facts;  // texts that the error must contain
  };
  const std::vector<Refused> cases{
      {8, {"--dist.pipeline=8"}, {"dist.pipeline = 8", "4 blocks"}},
      {3, {"--dist.pipeline=2"}, {"dist.pipeline = 2", "3 processes"}},
      {2,
       {"--dist.pipeline=2", "--dist.tensor=2"},
       {"dist.pipeline times dist.tensor = 4", "2 processes"}},
      {2,
       {"--dist.pipeline=2", "--memory.update_in_backward=true", "--train.grad_accum=1",
        "--optim.grad_clip=0"},
       {"dist.pipeline = 2", "memory.update_in_backward"}},
      {2,
       {"--dist.pipeline=2", "--memory.offload=activations"},
       {"dist.pipeline = 2", "activations", "memory.offload"}},
      {6, {"--dist.pipeline=2", "--train.grad_accum=4"}, {"train.grad_accum", "2, 4 or 8"}},
      {2, {"--dist.virtual_stages=2"}, {"dist.virtual_stages = 2", "dist.pipeline of at least 2"}},
      {2,
       {"--dist.pipeline=2", "--dist.virtual_stages=3"},
       {"dist.virtual_stages = 3", "4 blocks"}},
      {2,
       {"--dist.pipeline=2", "--dist.stage_blocks=1,2"},
       {"dist.stage_blocks = \"1,2\"", "3 blocks", "4 blocks"}},
      {2,
       {"--dist.pipeline=2", "--dist.stage_blocks=1,2,1"},
       {"dist.stage_blocks = \"1,2,1\"", "3 parts", "2"}},
      {2, {"--dist.pipeline=2", "--dist.stage_blocks=0,4"}, {"dist.stage_blocks = \"0,4\""}},
      {2, {"--dist.pipeline=2", "--dist.stage_blocks=1,3,"}, {"dist.stage_blocks = \"1,3,\""}},
      {2,
       {"--dist.pipeline=2", "--dist.virtual_stages=2", "--train.grad_accum=3"},
       {"dist.virtual_stages = 2", "dist.pipeline = 2", "not 3;", "train.grad_accum"}},
      {4,
       {"--dist.pipeline=2", "--dist.virtual_stages=2", "--train.grad_accum=3",
        "--train.batch_size=1"},
       {"processes; change train.grad_accum"}},
      {4,
       {"--dist.pipeline=2", "--dist.virtual_stages=2", "--train.grad_accum=3",
        "--train.batch_size=4"},
       {"processes; change train.grad_accum", "train.grad_accum = 4 and train.batch_size = 3"}},
      {2,
       {"--dist.pipeline=2", "--dist.virtual_stages=2", "--dist.shard=parameters",
        "--memory.recompute=blocks"},
       {"dist.virtual_stages = 2", "dist.shard = \"parameters\""}},
  };
  for (const Refused& c : cases) {
    const Finished done =
        train_on(f, c.ranks, "kind.toml", "refused", with_keys(pipeline_keys, c.keys));
    INFO(c.keys.back() << ": " << done.err);
    CHECK(done.code == 2);
    for (const std::string& fact : c.facts) CHECK_THAT(done.err, ContainsSubstring(fact));
    CHECK(!fs::exists(f / "runs/refused"));
  }

  lathe::test::write_config(f, lathe::test::kinds[0]);  // an mlp with batch norm
  const Finished norm =
      train_on(f, 2, "kind.toml", "refused",
               with_keys(pipeline_keys, {"--dist.pipeline=2", "--model.n_layer=2"}));
  CHECK(norm.code == 2);
  CHECK_THAT(norm.err,
             ContainsSubstring("dist.pipeline = 2") && ContainsSubstring("running statistics"));
  CHECK(!fs::exists(f / "runs/refused"));
}

}  // namespace
