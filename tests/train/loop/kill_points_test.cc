// Tests that a run that is killed at a named point of a save or a start resumes with the results of
// a run that was never stopped. The comparison must also detect runs that are deliberately
// resumed wrongly.
#include "core/io/checksum.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "tests/support/catch.h"
#include "tests/train/loop/trials.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("a run killed at any stage of a save resumes exactly", "[kill_points]") {
  Trials trials;
  const std::vector<std::string> stages{"save: folder made",       "save: model written",
                                        "save: optimizer written", "save: state written",
                                        "save: manifest written",  "save: folder synced",
                                        "save: renamed",           "save: parent synced"};
  for (const auto& stage : stages) {
    const bool there = stage == "save: renamed" || stage == "save: parent synced";
    for (int nth : {1, 2, 4}) {  // the first, a middle and the last save
      CHECK(trials.trial({{stage, static_cast<double>(nth), 10 * (there ? nth : nth - 1)}}));
    }
  }
  CHECK(trials.trial({{"save: deleting an old one", 1, 30}}));
  CHECK(trials.trial(
      {{"save: deleting an old one", 2, 40}}));  // no save follows: the next start cleans up
}

TEST_CASE("a run killed at its start, or killed twice, resumes exactly", "[kill_points]") {
  Trials trials;
  CHECK(trials.trial({{"start: locked", 1, 0}}));
  CHECK(trials.trial({{"start: metrics cut", 1, 0}}));
  CHECK(trials.trial({{"step", 15, 10}, {"start: locked", 1, 10}}));
  CHECK(trials.trial({{"step", 15, 10}, {"start: metrics cut", 1, 10}}));
  CHECK(trials.trial({{"step", 15, 10}, {"step", 3, 10}}));
  // A start that finds an unfinished save must keep the earlier checkpoints.
  CHECK(trials.trial({{"save: model written", 2, 10}, {"start: metrics cut", 1, 10}}));
  CHECK(trials.trial({{"save: model written", 2, 10}, {"save: state written", 1, 10}}));
}

TEST_CASE("before it trains, a start removes what an unfinished save left", "[kill_points]") {
  const Trials trials;
  const auto unfinished = [&] {
    const auto there = list_folder(trials.folder() / "run/checkpoints");
    return std::count_if(there.begin(), there.end(), [](const fs::path& p) {
      return p.filename().string().starts_with(".unfinished-");
    });
  };
  REQUIRE(trials.start("run", {{"LATHE_TEST_KILL", "save: model written 2"}}).code == killed);
  CHECK(unfinished() == 1);
  REQUIRE(trials.start("run", {{"LATHE_TEST_KILL", "start: metrics cut 1"}}).code == killed);
  CHECK(unfinished() == 0);
}

/// Returns whether the evaluation of a run's newest checkpoint is still due.
bool is_evaluation_due(const fs::path& run) {
  return read_state(list_checkpoints(run).at(0)).eval_due;
}

TEST_CASE("a run killed while it saves a step again keeps the checkpoint and resumes exactly",
          "[kill_points]") {
  const Trials trials;
  const TempFolder& folder = trials.folder();
  // A stop interrupts the evaluation after the last step. The next start evaluates and saves again.
  const auto stop_at_end = [&](const std::string& run) {
    REQUIRE(trials.start(run, {{"LATHE_TEST_STOP", "step 40"}}).code == 75);
    REQUIRE(is_evaluation_due(folder / run));
  };

  stop_at_end("killed");
  REQUIRE(trials.start("killed", {{"LATHE_TEST_KILL", "save: replaced one renamed 1"}}).code ==
          killed);
  CHECK(step_of(list_checkpoints(folder / "killed").at(0)) == 40);
  CHECK(lathe_in(folder, {"verify", "killed"}).code == 0);

  // The 4th rename of the save fails. The first two rename state.json and manifest.json, the 3rd
  // moves the old checkpoint aside, and the 4th would put the new checkpoint in its place.
  stop_at_end("failed");
  CHECK(trials.start("failed", {{"LATHE_TEST_FAIL", "rename EIO 4 1"}}).code == 6);
  CHECK(fs::exists(folder / "failed/checkpoints/step-00000040"));

  for (const char* run : {"killed", "failed"}) {
    const Finished f = trials.start(run, {});
    INFO(run << ": " << f.out << f.err);
    CHECK(f.code == 0);
    CHECK_THAT(f.out, ContainsSubstring(str("from ", run, "/checkpoints/step-00000040")));
    CHECK(difference(folder / "reference", folder / run) == "");
    CHECK(!is_evaluation_due(folder / run));
    const auto there = list_folder(folder / run / "checkpoints");
    CHECK(there.size() == list_checkpoints(folder / run).size());
    CHECK(fs::exists(folder / run / "checkpoints/step-00000040"));
  }
}

TEST_CASE("a run that resumes at train.pause_at first runs and saves the missed evaluation",
          "[kill_points]") {
  const Trials trials({"--train.pause_at=20"});
  const TempFolder& folder = trials.folder();
  REQUIRE(trials.start("run", {{"LATHE_TEST_STOP", "step 20"}}).code == 75);
  REQUIRE(is_evaluation_due(folder / "run"));
  CHECK(trials.start("run", {}).code == 75);
  CHECK(!is_evaluation_due(folder / "run"));
  CHECK(trials.newest("run") == 20);

  CHECK(lathe_in(folder, {"train", "tiny.toml", "--train.out_dir=run"}).code == 0);
  CHECK(difference(folder / "reference", folder / "run") == "");
}

TEST_CASE("the comparison notices a resume that is wrong", "[kill_points]") {
  Trials trials;
  const auto& folder = trials.folder();
  const auto stop_at_15 = [&](const std::string& run) {
    CHECK(trials.start(run, {{"LATHE_TEST_KILL", "step 15"}}).code == killed);
    return list_checkpoints(folder / run).at(0);
  };

  stop_at_15("right");
  CHECK(trials.start("right", {}).code == 0);
  CHECK(difference(folder / "reference", folder / "right") == "");

  const fs::path zeroed = stop_at_15("zeroed");
  {
    const SafetensorsFile file(zeroed / "optimizer.safetensors");
    std::vector<std::vector<std::byte>> zeros;
    auto entries = file.tensors();
    for (auto& e : entries) {
      zeros.emplace_back(e.bytes.size());
      e.bytes = zeros.back();
    }
    write_safetensors(zeroed / "zeroed", entries);
  }
  fs::rename(zeroed / "zeroed", zeroed / "optimizer.safetensors");
  update_manifest(zeroed);
  CHECK(trials.start("zeroed", {}).code == 0);
  CHECK(difference(folder / "reference", folder / "zeroed") != "");

  stop_at_15("shifted");
  CHECK(trials.start("shifted", {{"LATHE_TEST_RNG_SHIFT", "1"}}).code == 0);
  CHECK(difference(folder / "reference", folder / "shifted") != "");

  const fs::path uncut = stop_at_15("uncut");
  Json state = parse_json(slurp(uncut / "state.json"), "state", Exit::internal);
  state["metrics_bytes"] = fs::file_size(folder / "uncut/metrics.jsonl");
  write_file(uncut / "state.json", state.dump());
  update_manifest(uncut);
  CHECK(trials.start("uncut", {}).code == 0);
  CHECK_THAT(difference(folder / "reference", folder / "uncut"), ContainsSubstring("metrics line"));
}

}  // namespace
