// Tests of the start of several processes: each process has the initial values of a run on one
// process, but never the complete model.
#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "autograd/tensor_cut.h"
#include "core/memory.h"
#include "dist/world.h"
#include "nn/models/model.h"
#include "nn/state.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "train/formats/tensor_files.h"
#include "train/session/session.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

const Kind eight_blocks{.name = "llama",
                        .data = "text",
                        .keys =
                            "n_layer = 8\nn_head = 4\nn_kv_head = 2\nn_embd = 64\nblock_size = 12\n"
                            "tie_weights = false\n"};

/// Returns this process's part of a parameter, as 1-D, and the same part of `whole`. Both are
/// undefined if the process has no part of the parameter.
std::pair<at::Tensor, at::Tensor> kept_and_wanted(const Variable& p, at::Tensor whole) {
  if (const TensorCut* cut = cut_of(p)) whole = cut->part_of(whole);
  whole = whole.reshape({-1});
  const auto& [own, end] = p.leaf().own;
  if (!own.defined()) return {p.data().reshape({-1}), whole};
  if (own.numel() == 0) return {};
  return {own, whole.narrow(0, end - own.numel(), own.numel())};
}

/// Starts a run as this process's rank, and compares the run's parameters with the parameters of a
/// model on one process.
void check_start(const Words& keys) {
  const auto placement = placement_from_environment();
  REQUIRE(placement);
  const TempFolder f;
  make_data(f);
  write_config(f, eight_blocks);
  std::vector<std::pair<std::string, std::string>> all{
      {"data.dir", (f / "text").string()}, {"optim.ema_decay", "0.9"}, {"train.grad_accum", "4"}};
  for (const std::string& key : keys) {
    const size_t equals = key.find('=');
    all.emplace_back(key.substr(2, equals - 2), key.substr(equals + 1));
  }
  const RunData data = RunData::open(load_config((f / "kind.toml").string(), all));
  const LoadedConfig& loaded = data.loaded;
  install_allocator();

  const auto& model = loaded.config.model;
  const auto whole = make_model(*find_model_kind(model.kind), model.own, data.sizes,
                                static_cast<uint64_t>(loaded.config.train.seed));
  const int64_t whole_bytes = memory_stats().used[static_cast<size_t>(Memory::parameters)];
  const auto expected = parameters(*whole);
  join_world(*placement, loaded.config.dist);

  reset_memory_peaks();
  const Session s = Session::make(data);
  const int64_t peak = memory_stats().peak[static_cast<size_t>(Memory::parameters)] - whole_bytes;
  INFO("rank " << world().rank() << " had at most " << peak << " of " << whole_bytes << " bytes");
  CHECK(static_cast<double>(peak) < 0.7 * static_cast<double>(whole_bytes));

  int64_t compared = 0;
  REQUIRE(expected.size() == s.params.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO(s.params[i].path);
    const auto [kept, wanted] =
        kept_and_wanted(s.params[i].parameter, expected[i].parameter.data());
    if (!wanted.defined()) continue;
    REQUIRE(kept.equal(wanted));
    compared += kept.numel();
  }
  CHECK(compared > count(expected) / 8);
  for (const ParameterGroup& group : s.optimizer.groups()) {
    for (const Slot& slot : group.slots) {
      if (slot.own.size() == 0) continue;
      INFO(slot.path);
      const auto [kept, wanted] =
          kept_and_wanted(slot.param, expected[slot.index].parameter.data());
      const at::Tensor average = slot.state.back().reshape({-1});
      const int64_t begin = slot.own.size() == kept.numel() ? 0 : slot.own.begin;
      CHECK(average.equal(wanted.narrow(0, begin, slot.own.size())));
    }
  }
  world().wait_for_all();
}

TEST_CASE("a stage checks its start", "[.start_of_stage]") { check_start({"--dist.pipeline=2"}); }
TEST_CASE("a tensor rank checks its start", "[.start_of_part]") {
  check_start({"--dist.tensor=2"});
}
TEST_CASE("a data rank checks its start", "[.start_of_shard]") {
  check_start({"--dist.shard=parameters", "--memory.recompute=blocks"});
}
TEST_CASE("a data rank of a stage with cut layers checks its start", "[.start_of_all]") {
  check_start({"--dist.pipeline=2", "--dist.tensor=2", "--dist.shard=parameters",
               "--memory.recompute=blocks"});
}

TEST_CASE("a process starts with the values of its part of the model, and never has all of it",
          "[start]") {
  check_on_ranks(2, "[.start_of_stage]");
  check_on_ranks(2, "[.start_of_part]");
  check_on_ranks(2, "[.start_of_shard]");
  check_on_ranks(8, "[.start_of_all]");
}

TEST_CASE("parts of a model start from train.init_from, and resume from bfloat16 checkpoints",
          "[start]") {
  const TempFolder f;
  make_data(f);
  write_config(f, eight_blocks);
  const Words keys{"--train.steps=4",         "--train.grad_accum=4",   "--train.batch_size=2",
                   "--train.eval_interval=2", "--train.eval_batches=3", "--checkpoint.interval=4",
                   "--dist.timeout=60",       "--optim.ema_decay=0.9",  "--checkpoint.dtype=bf16"};
  const auto train = [&](int ranks, const std::string& name, const Words& more, int code) {
    const Finished done = train_on(f, ranks, "kind.toml", name, with_keys(keys, more));
    INFO(done.out << done.err);
    REQUIRE(done.code == code);
  };
  train(1, "source", {"--train.seed=5"}, 0);
  REQUIRE(lathe_in(f, {"export", "runs/source", "--out", "exported"}).code == 0);

  for (const std::string from : {"runs/source", "exported"}) {
    const std::string init = "--train.init_from=" + from;
    train(1, from + "-alone", {init}, 0);
    const std::string alone = results_of(f / ("runs/" + from + "-alone"), "step-00000004");
    for (const Words& layout :
         {Words{"--dist.pipeline=2"}, {"--dist.shard=parameters", "--memory.recompute=blocks"}}) {
      const std::string name = from + layout[0];
      INFO(name);
      const Words own = with_keys(layout, {init});
      train(2, name, with_keys(own, {"--train.pause_at=2"}), 75);
      train(2, name, own, 0);
      check_same_tensors(f / ("runs/" + from + "-alone"), f / ("runs/" + name), "step-00000004");
      train(2, name + "-whole", own, 0);
      CHECK((results_of(f / ("runs/" + name + "-whole"), "step-00000004") == alone));
    }
  }
}

/// Changes the last element of a weight matrix in the model's last block.
void change_last_block(const fs::path& file) {
  StateDict state = read_state_dict(file);
  at::Tensor& weight = state.at("model.layers.7.mlp.down_proj.weight");
  weight = weight.clone();
  weight.view({-1})[weight.numel() - 1] += 1;
  save_state_dict(state, file);
}

TEST_CASE("processes that read different source weights are refused", "[start]") {
  const TempFolder f;
  make_data(f);
  write_config(f, eight_blocks);
  const Words common{"train", "kind.toml", "--train.steps=2", "--dist.timeout=30"};
  const auto source = [&](const std::string& name, const std::string& seed) {
    REQUIRE(lathe_in(f, {"train", "kind.toml", "--train.steps=2", "--train.out_dir=" + name,
                         "--train.eval_interval=0", "--train.seed=" + seed})
                .code == 0);
  };
  // Rank 1 shares all files with rank 0 except the sources.
  const fs::path elsewhere = f / "elsewhere";
  fs::create_directory(elsewhere);
  for (const char* shared : {"kind.toml", "text", "runs"})
    fs::create_symlink(f / shared, elsewhere / shared);
  source("run", "1");
  source("elsewhere/run", "2");
  REQUIRE(lathe_in(f, {"export", "run", "--out", "exported"}).code == 0);
  fs::copy(f / "exported", elsewhere / "exported");
  change_last_block(elsewhere / "exported/model.safetensors");

  // The runs read weights that only rank 1 has, or frozen weights, which no checkpoint has.
  for (const Words& keys : {Words{"--train.init_from=exported", "--dist.pipeline=2"},
                            {"--adapters.base=run", "--adapters.rank=2"},
                            {"--train.task=distill", "--distill.teacher=run"}}) {
    for (const bool is_same : {true, false}) {
      INFO(keys[0] << (is_same ? ", the same" : ", another"));
      const std::string port = std::to_string(free_port());
      Words words = common;
      words.insert(words.end(), keys.begin(), keys.end());
      words.push_back("--train.out_dir=runs/" + keys[0] + (is_same ? "-same" : "-other"));
      std::vector<Finished> done(2);
      {
        std::vector<std::jthread> threads;
        for (const int rank : {0, 1}) {
          threads.emplace_back([&, rank] {
            done[static_cast<size_t>(rank)] =
                run({.binary = "lathe",
                     .args = words,
                     .folder = rank == 0 || is_same ? f.path() : elsewhere,
                     .environment = {{"RANK", std::to_string(rank)},
                                     {"WORLD_SIZE", "2"},
                                     {"MASTER_ADDR", "127.0.0.1"},
                                     {"MASTER_PORT", port}},
                     .apart = true});
          });
        }
      }
      INFO(done[0].err << done[1].err);
      CHECK(done[0].code == (is_same ? 0 : 2));
      CHECK(done[1].code == (is_same ? 0 : 2));
      CHECK(is_same ==
            (done[0].err.find("of rank 1 differs from that of rank 0") == std::string::npos));
      CHECK(fs::exists(f / ("runs/" + keys[0] + "-other")) == false);
    }
  }
}

TEST_CASE("an evaluation needs less than 15% more memory than training", "[start]") {
  const TempFolder f;
  make_data(f);
  write_config(f, eight_blocks);
  for (const Words& layout :
       {Words{"--dist.pipeline=2"}, {"--dist.shard=parameters", "--memory.recompute=blocks"}}) {
    INFO(layout[0]);
    const Words keys = with_keys(layout, {"--model.n_embd=256", "--train.steps=2",
                                          "--train.batch_size=1", "--checkpoint.interval=2"});
    const auto peak = [&](const std::string& interval) {
      const Words own = with_keys(keys, {"--train.eval_interval=" + interval});
      REQUIRE(train_on(f, 2, "kind.toml", layout[0] + interval, own).code == 0);
      const double planned =
          plan_of(f, 2, "kind.toml", own).at("tensors_mb").get<double>() * (1 << 20);
      const auto measured =
          first_rank_stats(f / ("runs/" + layout[0] + interval)).at("memory_bytes").get<double>();
      // The number of buckets that wait depends on timing. So does the number of blocks whose
      // parameters are gathered ahead.
      CHECK(measured == Approx(planned).epsilon(0.1));
      return measured;
    };
    // If each process gathered all parameters, the peak would be a third higher. The tensors of a
    // batch add little.
    CHECK(peak("1") < 1.15 * peak("0"));
  }
}

TEST_CASE("processes that together need far more memory than is free are refused", "[start]") {
  const TempFolder f;
  make_data(f);
  write_config(f, eight_blocks);
  const Words keys{"--train.steps=1", "--train.eval_interval=0", "--dist.timeout=60"};
  const auto train = [&](int ranks, const std::string& name, const Words& more) {
    return train_on(f, ranks, "kind.toml", name, with_keys(keys, more));
  };
  // Each of two processes needs 0.4 TB for half of the blocks.
  const Finished refused =
      train(2, "large", {"--model.n_embd=8192", "--model.n_layer=60", "--dist.pipeline=2"});
  INFO(refused.err);
  CHECK(refused.code == 9);
  CHECK_THAT(refused.err, ContainsSubstring("2 processes") && ContainsSubstring("--force true"));
  CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
  CHECK(!fs::exists(f / "runs/large"));

  // Four replicas need twice the memory of two.
  const auto needs = [](const Finished& done) {
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
    const std::string all = done.out + done.err, before = "needs     about ";
    return std::stod(all.substr(all.find(before) + before.size()));
  };
  const double two = needs(train(2, "two", {"--train.grad_accum=4"}));
  CHECK(needs(train(4, "four", {"--train.grad_accum=4"})) == Approx(2 * two).epsilon(0.15));
}

TEST_CASE("a rank compares its lines with the other rank's", "[.lines_of_ranks]") {
  join_world(placement_from_environment().value(), {});
  const bool is_first = world().rank() == 0;
  world().check_same_lines("the model", is_first ? "a 1\nb 2\n" : "b 2\nc 4\n");
  CHECK_THROWS_WITH(world().check_same_lines("the model", is_first ? "a 1\nb 2\n" : "b 3\nc 4\n"),
                    ContainsSubstring("the model of rank 1 ") && ContainsSubstring("rank 0") &&
                        ContainsSubstring("b 3") && ContainsSubstring("b 2"));
  world().wait_for_all();
}

TEST_CASE("values that several processes have must be the same", "[start]") {
  check_on_ranks(2, "[.lines_of_ranks]");
}

TEST_CASE("content_id() is the same for equal weights, and differs if a weight differs",
          "[start]") {
  const TempFolder f;
  const auto id_of = [&](const std::string& folder, double last) {
    fs::create_directory(f / folder);
    at::Tensor b = torch::ones({3});
    b[2] = last;
    save_state_dict({{"a", torch::zeros({5000, 2})}, {"b", b}},
                    f / (folder + "/model.safetensors"));
    return TensorFiles(f / folder).content_id();
  };
  const std::string id = id_of("one", 1);
  CHECK(id_of("two", 1) == id);
  CHECK(id_of("three", 2) != id);
}

}  // namespace
