// Tests of checkpoints of which each process writes a part.
#include <torch/types.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "autograd/node.h"
#include "core/io/json.h"
#include "dist/world.h"
#include "optim/optimizer.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "train/store/checkpoint.h"
#include "train/store/run_state.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Words = std::vector<std::string>;

const Kind saved_gpt{
    .name = "gpt",
    .data = "text",
    .keys = "n_layer = 2\nn_head = 2\nn_embd = 128\nblock_size = 12\ndropout = 0.1\n"};
// In the first layout, all processes have a copy of some tensors. In the last one, tensors are cut.
const std::vector<Words> divided_layouts{
    {"--dist.shard=optimizer"},
    {"--dist.shard=parameters", "--memory.recompute=blocks"},
    {"--dist.pipeline=2", "--model.tie_weights=false"},
    {"--dist.tensor=2"},
};
const Words divided_keys{"--train.steps=6",         "--train.grad_accum=4", "--train.batch_size=2",
                         "--checkpoint.interval=3", "--checkpoint.keep=2",  "--dist.timeout=60"};

std::string text_of(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += word + " ";
  return text;
}

TEST_CASE("commands read a checkpoint that several processes wrote, and merge joins its parts",
          "[divided_checkpoints]") {
  const TempFolder f;
  make_data(f);
  write_config(f, saved_gpt);
  for (size_t i = 0; i < divided_layouts.size(); ++i) {
    INFO(text_of(divided_layouts[i]));
    const std::string name = std::to_string(i);
    REQUIRE(train_on(f, 2, "kind.toml", name, with_keys(divided_keys, divided_layouts[i])).code ==
            0);
    const fs::path run = f / ("runs/" + name), checkpoint = run / "checkpoints/step-00000006";
    CHECK(names(checkpoint) ==
          std::set<std::string>{"manifest.json", "model-00001-of-00002.safetensors",
                                "model-00002-of-00002.safetensors",
                                "optimizer-00001-of-00002.safetensors",
                                "optimizer-00002-of-00002.safetensors", "state.json"});
    for (const char* file :
         {"model-00002-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"})
      CHECK(fs::file_size(checkpoint / file) > 100000);

    REQUIRE(lathe_in(f, {"merge", "runs/" + name, "--out", "merged/" + name}).code == 0);
    const fs::path merged = f / ("merged/" + name);
    CHECK(fs::exists(merged / "checkpoints/step-00000006/model.safetensors"));
    check_same_tensors(run, merged, "step-00000006");
    CHECK(lathe_in(f, {"merge", "merged/" + name, "--out", "again"}).code == 2);

    // The divided checkpoint and the merged checkpoint give the same results.
    for (const Words& command :
         std::vector<Words>{{"verify", ""},
                            {"inspect", ""},
                            {"eval", ""},
                            {"generate", "", "--prompt", "the", "--tokens", "20", "--seed", "3"},
                            {"export", "", "--format", "hf", "--out", "exported"}}) {
      INFO(text_of(command));
      std::string first;
      for (const std::string& path : {run.string(), merged.string()}) {
        Words words = command;
        words[1] = path;
        fs::remove_all(f / "exported");
        const Finished done = lathe_in(f, words);
        INFO(done.err);
        REQUIRE(done.code == 0);
        // The outputs of verify and inspect differ between the two folders, for example because the
        // run also has the previous checkpoint.
        if (command[0] == "verify" || command[0] == "inspect") continue;
        std::string out = done.out;
        if (command[0] == "eval") out = Json::parse(out).at("val_loss").dump();
        if (command[0] == "export") out = slurp(f / "exported/model.safetensors");
        REQUIRE(!out.empty());
        if (first.empty()) first = out;
        CHECK(out == first);
      }
    }
  }
}

TEST_CASE("background saves of several processes are bitwise equal to the state at their step",
          "[divided_checkpoints]") {
  const TempFolder f;
  make_data(f);
  write_config(f, saved_gpt);
  for (const Words& layout : divided_layouts) {
    INFO(text_of(layout));
    const Words own = with_keys(divided_keys, layout);
    fs::remove_all(f / "runs");
    REQUIRE(train_on(f, 2, "kind.toml", "waits", own).code == 0);
    const Finished done =
        train_on(f, 2, "kind.toml", "background", with_keys(own, {"--checkpoint.async_save=true"}));
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
    for (const char* step : {"step-00000003", "step-00000006"})
      check_same_tensors(f / "runs/waits", f / "runs/background", step);
  }
}

TEST_CASE("adapters train on a base that several processes wrote", "[divided_checkpoints]") {
  const TempFolder f;
  make_data(f);
  write_config(f, saved_gpt);
  REQUIRE(train_on(f, 2, "kind.toml", "base", with_keys(divided_keys, divided_layouts[0])).code ==
          0);
  REQUIRE(lathe_in(f, {"merge", "runs/base", "--out", "runs/whole"}).code == 0);
  for (const char* base : {"base", "whole"}) {
    const Finished done = train_on(
        f, 1, "kind.toml", str("on_", base),
        with_keys(divided_keys, {"--adapters.rank=2", str("--adapters.base=runs/", base)}));
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
  }
  check_same_tensors(f / "runs/on_base", f / "runs/on_whole", "step-00000006");
  CHECK(lathe_in(f, {"eval", "runs/on_base"}).code == 0);

  // Several processes can also start from such weights.
  for (const char* base : {"base", "whole"}) {
    const Finished done = train_on(f, 2, "kind.toml", str("from_", base),
                                   with_keys(divided_keys, {str("--train.init_from=runs/", base)}));
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
  }
  check_same_tensors(f / "runs/from_base", f / "runs/from_whole", "step-00000006");

  // The base is recognized by the checksums of all of its files.
  const fs::path state = f / "runs/on_base/checkpoints/step-00000006/state.json";
  const Json json = Json::parse(slurp(state));
  CHECK(json.at("base_hash") == model_id(f / "runs/base/checkpoints/step-00000006"));
  CHECK(json.at("base_hash") != model_id(f / "runs/whole/checkpoints/step-00000006"));
}

/// Trains with one process per element of `of`. of[rank] is added to the environment of that rank.
/// Rank 1 runs in `folder_of_rank1` unless that is empty. Returns the results of each process.
std::vector<Finished> train_with_faults(const TempFolder& f, const std::string& name,
                                        const Words& words,
                                        const std::vector<std::map<std::string, std::string>>& of,
                                        const fs::path& folder_of_rank1 = {}) {
  const std::string port = std::to_string(free_port());
  std::vector<Finished> done(of.size());
  Words args{"train", "kind.toml", "--train.out_dir=runs/" + name};
  args.insert(args.end(), words.begin(), words.end());

  std::vector<std::jthread> threads;
  for (size_t r = 0; r < of.size(); ++r) {
    threads.emplace_back([&, r] {
      std::map<std::string, std::string> environment{{"RANK", std::to_string(r)},
                                                     {"WORLD_SIZE", std::to_string(of.size())},
                                                     {"MASTER_ADDR", "127.0.0.1"},
                                                     {"MASTER_PORT", port},
                                                     {"OMP_NUM_THREADS", "1"}};
      environment.insert(of[r].begin(), of[r].end());
      done[r] = run({.binary = "lathe_faults",
                     .args = args,
                     .folder = r == 1 && !folder_of_rank1.empty() ? folder_of_rank1 : f.path(),
                     .environment = environment,
                     .apart = true});
    });
  }
  threads.clear();  // joins the threads
  return done;
}

constexpr int killed = 128 + 9;

TEST_CASE("a rank killed at any stage of a divided save loses no checkpoint",
          "[divided_checkpoints]") {
  const TempFolder f;
  make_data(f);
  write_config(f, saved_gpt);
  const Words own = with_keys(divided_keys, {"--dist.shard=optimizer", "--dist.timeout=10"});
  REQUIRE(train_on(f, 1, "kind.toml", "whole", divided_keys).code == 0);

  struct Kill {
    size_t rank;
    const char* point;
    bool is_saved;  // whether the second save is complete
  };
  const std::vector<Kill> kills{
      {0, "save: folder made", false},   {0, "save: optimizer written", false},
      {0, "save: state written", false}, {0, "save: manifest written", false},
      {0, "save: parent synced", true},  {1, "save: begun", false},
      {1, "save: model written", false}, {1, "save: optimizer written", false},
  };
  for (size_t i = 0; i < kills.size(); ++i) {
    const auto& [rank, point, is_saved] = kills[i];
    INFO("rank " << rank << " at " << point);
    const std::string name = std::to_string(i);
    std::vector<std::map<std::string, std::string>> faults(2);
    faults[rank]["LATHE_TEST_KILL"] = str(point, " 2");
    // Every other run saves in the background.
    const Words all = with_keys(
        own, {i % 2 == 0 ? "--checkpoint.async_save=false" : "--checkpoint.async_save=true"});
    const std::vector<Finished> done = train_with_faults(f, name, all, faults);
    INFO(done[0].out << done[0].err << done[1].err);
    CHECK(done[rank].code == killed);
    CHECK(done[1 - rank].code == 7);
    CHECK_THAT(done[1 - rank].err, ContainsSubstring(str("rank ", rank, " of 2")));

    const auto there = list_checkpoints(f / ("runs/" + name));
    REQUIRE(there.size() == (is_saved ? 2 : 1));
    for (const fs::path& checkpoint : there) verify_checkpoint(checkpoint);
    REQUIRE(train_on(f, 1, "kind.toml", name, divided_keys).code == 0);
    check_same_tensors(f / "runs/whole", f / ("runs/" + name), "step-00000006");
  }
}

TEST_CASE("a full disk on one rank ends all ranks, and only the previous checkpoint exists",
          "[divided_checkpoints]") {
  const TempFolder f;
  make_data(f);
  write_config(f, saved_gpt);
  const Words own =
      with_keys(divided_keys, {"--dist.shard=parameters", "--memory.recompute=blocks"});
  for (const size_t rank : {0, 1}) {
    for (const bool is_async : {false, true}) {
      INFO("rank " << rank << (is_async ? ", in the background" : ""));
      const std::string name = str(rank, is_async);
      std::vector<std::map<std::string, std::string>> faults(2);
      faults[rank]["LATHE_TEST_FAIL"] = "write ENOSPC 1 2";  // the first write of the second save
      const std::vector<Finished> done = train_with_faults(
          f, name, with_keys(own, {str("--checkpoint.async_save=", is_async ? "true" : "false")}),
          faults);
      INFO(done[0].out << done[0].err << done[1].err);

      CHECK(done[rank].code == 6);
      CHECK_THAT(done[rank].err,
                 ContainsSubstring("step-00000006") && ContainsSubstring("No space left"));
      CHECK(done[1 - rank].code == 6);
      CHECK_THAT(done[1 - rank].err, ContainsSubstring(str("rank ", rank, " of 2 on ")) &&
                                         ContainsSubstring("No space left"));
      CHECK(names(f / ("runs/" + name + "/checkpoints")) == std::set<std::string>{"step-00000003"});
      REQUIRE(train_on(f, 1, "kind.toml", name, own).code == 0);
    }
  }
}

TEST_CASE(
    "a sharded run that diverges ends on all ranks, even if a rank can't write the replay bundle",
    "[divided_checkpoints]") {
  const TempFolder f;
  make_data(f);
  write_config(f, saved_gpt);
  const Words own =
      with_keys(divided_keys, {"--dist.shard=optimizer", "--optim.lr=1e30", "--optim.kind=sgd"});
  for (const bool is_full : {false, true}) {
    INFO(is_full);
    const std::string name = is_full ? "full" : "written";
    std::vector<std::map<std::string, std::string>> faults(2);
    if (is_full) faults[1]["LATHE_TEST_FAIL"] = "write ENOSPC 1 1";
    const std::vector<Finished> done = train_with_faults(f, name, own, faults);
    INFO(done[0].out << done[0].err << done[1].err);
    for (const Finished& one : done) CHECK(one.code == 5);

    const Finished replayed = lathe_in(f, {"replay", "runs/" + name});
    CHECK(replayed.code == (is_full ? 2 : 0));
    if (is_full)
      CHECK_THAT(done[1].err, ContainsSubstring("No space left"));
    else
      CHECK_THAT(replayed.out, ContainsSubstring("finite"));
  }
}

TEST_CASE("a sharded run that diverges during a background save finishes the save first",
          "[divided_checkpoints]") {
  const TempFolder f;
  make_data(f);
  write_config(f, saved_gpt);
  const Words own = with_keys(
      divided_keys, {"--dist.shard=optimizer", "--optim.lr=1e30", "--optim.kind=sgd",
                     "--optim.grad_clip=0", "--schedule.kind=constant", "--schedule.warmup_steps=0",
                     "--checkpoint.interval=1", "--checkpoint.async_save=true"});
  // The ranks write at different times, so a save is in progress on one rank when the run diverges.
  for (const size_t slow : {0, 1}) {
    INFO("slow rank " << slow);
    const std::string name = str("slow", slow);
    std::vector<std::map<std::string, std::string>> faults(2);
    faults[slow]["LATHE_TEST_SLOW"] = "save: model written 700";
    const std::vector<Finished> done = train_with_faults(f, name, own, faults);
    INFO(done[0].out << done[0].err << done[1].err);
    for (const Finished& one : done) CHECK(one.code == 5);
    CHECK_THAT(lathe_in(f, {"replay", "runs/" + name}).out, ContainsSubstring("finite"));

    const auto saved = list_checkpoints(f / ("runs/" + name));
    REQUIRE(saved.size() == 1);
    const Finished verified = lathe_in(f, {"verify", saved[0].string()});
    INFO(verified.out << verified.err);
    CHECK(verified.code == 0);
  }
}

// The next test case runs this one in one process per rank.
TEST_CASE("a rank saves an empty tensor", "[.rank_of_empty_tensor]") {
  const auto placement = placement_from_environment();
  REQUIRE(placement);
  DistConfig config;
  config.tensor = 2;  // divides the state
  join_world(*placement, config);
  world().open_saving_group();

  const auto make = [](double value) {
    return std::vector<NamedParameter>{
        {"a", Variable::parameter(torch::full({3}, value)), Role::weight},
        {"b", Variable::parameter(torch::zeros({0, 4})), Role::weight}};
  };
  OptimConfig sgd;
  sgd.kind = "sgd";
  RunState state;
  state.step = 1;
  save_checkpoint("run", state, make(7), Optimizer(sgd, make(7)), Retention{});
  world().wait_for_all();

  const auto loaded = make(0);
  load_parameters("run/checkpoints/step-00000001", loaded);
  CHECK(loaded[0].parameter.data().eq(7).all().item<bool>());
  world().wait_for_all();
}

TEST_CASE("a tensor without elements is in a divided checkpoint", "[divided_checkpoints]") {
  check_on_ranks(2, "[.rank_of_empty_tensor]");
}

TEST_CASE("ranks that do not share the run folder are an error that names the rank",
          "[divided_checkpoints]") {
  const TempFolder f;
  make_data(f);
  write_config(f, saved_gpt);
  const Words own = with_keys(divided_keys, {"--dist.shard=optimizer"});

  // Rank 1 runs in a copy of the folder. In the copy, the checkpoint's folder is missing, or exists
  // from an earlier run.
  for (const bool exists : {false, true}) {
    INFO(exists);
    const TempFolder other;
    fs::copy(f.path(), other.path(), fs::copy_options::recursive);
    const std::string name = exists ? "exists" : "missing";
    const fs::path there = other / ("runs/" + name + "/checkpoints/.unfinished-step-00000003");
    if (exists) fs::create_directories(there);
    const std::vector<Finished> done = train_with_faults(f, name, own, {{}, {}}, other.path());
    INFO(done[0].out << done[0].err << done[1].err);

    const size_t notices = exists ? 0 : 1;
    CHECK(done[notices].code == 6);
    CHECK_THAT(done[notices].err, ContainsSubstring("train.out_dir"));
    CHECK(done[1 - notices].code == 6);
    CHECK_THAT(done[1 - notices].err, ContainsSubstring(str("rank ", notices, " of 2 on ")) &&
                                          ContainsSubstring("train.out_dir"));
    CHECK(names(f / ("runs/" + name + "/checkpoints")).empty());
  }
}

}  // namespace
