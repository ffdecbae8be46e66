// Simulates power cuts: records the file calls of real saves and runs (tests/train/store/disk.h).
// In every state that a disk may have after any of these calls, Lathe must find the data that it
// promised to keep. LATHE_TEST_CRASH_STATES=100000 checks about that many states (2 minutes). Each
// run prints its random seed; LATHE_TEST_CRASH_SEED repeats a run with that seed.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include "core/device.h"
#include "core/io/log.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/small.h"
#include "tests/train/store/disk.h"
#include "train/loop/trainer.h"
#include "train/store/checkpoint.h"
#include "train/store/metrics.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Checks `folder`, a state that a power cut after the first n recorded calls may leave. Returns a
/// description of the fault, or "" if there is none.
using Check = std::function<std::string(const fs::path& folder, size_t n)>;

size_t wanted_states() {
  const char* given = std::getenv("LATHE_TEST_CRASH_STATES");
  return given != nullptr ? static_cast<size_t>(std::atoll(given)) : 10000;
}

unsigned seed() {
  static const unsigned drawn = [] {
    const char* given = std::getenv("LATHE_TEST_CRASH_SEED");
    const unsigned s =
        given != nullptr ? static_cast<unsigned>(std::atoll(given)) : std::random_device{}();
    WARN("seed of the crash states: LATHE_TEST_CRASH_SEED=" << s);
    return s;
  }();
  return drawn;
}

/// Checks at least `states` states of the disk. For each number of recorded calls, these include
/// the states that keep none or all of the unsynced changes. Returns the first fault, or "" if
/// there is none.
std::string first_fault(const DiskRecord& record, size_t states, const Check& check) {
  using Keep = DiskRecord::Keep;
  static const TempFolder folder(fast_folder());
  const size_t calls = record.calls().size();
  const Keep extremes[]{Keep::none, Keep::all, Keep::folders_alone, Keep::zeros};

  std::mt19937 random(seed());
  size_t looked_at = 0;
  for (; looked_at < std::max(states, 4 * (calls + 1)); ++looked_at) {
    const bool regular = looked_at < 4 * (calls + 1);
    const size_t n =
        regular ? looked_at / 4 : std::uniform_int_distribution<size_t>(0, calls)(random);
    const Keep keep = regular ? extremes[looked_at % 4] : Keep::random;
    const fs::path state = folder / "state";
    record.crash(n, keep, random, state);

    std::string fault;
    try {
      fault = check(state, n);
    } catch (const std::exception& e) {
      fault = e.what();
    }
    fs::remove_all(state);
    if (!fault.empty())
      return str("state ", looked_at, ", after call ", n, " of ", calls, ": ", fault);
  }

  WARN(looked_at << " states of " << calls << " calls");
  return "";
}

/// Suppresses the thousands of messages about metrics that are cut back, as long as the object
/// exists.
struct Quiet {
  Quiet() { set_console_level(Level::error); }
  ~Quiet() { set_console_level(Level::info); }
};

/// Checkpoints saved in one run folder, and a check of the states that a power cut may leave.
/// `steps` has the steps of the checkpoints in order; the first `durable` of them were saved before
/// the recording began.
struct Saves {
  TempFolder root{fast_folder()};
  fs::path run = root / "new/run";
  std::vector<int64_t> steps;
  size_t durable = 0, keep = 2;
  std::string metrics;  // the final contents of metrics.jsonl

  std::string fault(const DiskRecord& record, const fs::path& folder, size_t n) const {
    const size_t whole = durable + record.points_before(n, "save: parent synced"),
                 begun = durable + record.points_before(n, "save: folder made");
    const fs::path in = folder / "new/run";
    const auto all = list_checkpoints(in);
    if (record.points_before(n, "start: metrics cut") > 0 &&
        slurp(in / "config.toml") != slurp(run / "config.toml"))
      return "config.toml differs from what was written";

    if (all.empty()) {
      if (whole > 0) return "no checkpoint is left";
      clean_checkpoints(in);
      return unfinished(in);
    }

    // The newest checkpoint must be complete, and must not be older than the last durable
    // checkpoint.
    for (const auto& path : all) verify_checkpoint(path);
    const RunState state = read_state(all[0]);
    const auto at =
        static_cast<size_t>(std::find(steps.begin(), steps.end(), state.step) - steps.begin());
    if (at >= begun) return str("step ", state.step, " is present before its save began");
    if (at + 1 < whole)
      return str("step ", state.step, " is the newest, although a later one was saved");
    if (all.size() < std::min(at + 1, keep))
      return str(all.size(), " checkpoints are left at step ", state.step);

    const std::string lines = slurp(in / "metrics.jsonl");
    if (lines.size() < state.metrics_bytes ||
        lines.substr(0, state.metrics_bytes) != metrics.substr(0, state.metrics_bytes))
      return str("metrics.jsonl has ", lines.size(), " bytes, not the ", state.metrics_bytes,
                 " of the checkpoint");

    // Do what a run does when it starts.
    clean_checkpoints(in);
    quarantine_newer(all[0]);
    const Metrics cut(in, state.metrics_bytes);
    if (newest_checkpoint(in) != all[0] || list_checkpoints(in) != all)
      return "the start of a run changed the checkpoints";
    if (fs::file_size(in / "metrics.jsonl") != state.metrics_bytes)
      return "the start of a run left metrics.jsonl too long";
    return unfinished(in);
  }
  Check check(const DiskRecord& record) const {
    return [this, &record](const fs::path& folder, size_t n) { return fault(record, folder, n); };
  }

 private:
  static std::string unfinished(const fs::path& in) {
    for (const auto& path : list_folder(in / "checkpoints")) {
      if (!path.filename().string().starts_with("step-"))
        return path.filename().string() + " is left";
    }
    return "";
  }
};

/// Saves at the given steps in the order of the training loop: writes metrics, syncs them, saves
/// the checkpoint.
void save_all(Saves& saves, const std::vector<int64_t>& steps) {
  const Small s;
  make_folders(saves.run);
  RunState state;
  const fs::path lines = saves.run / "metrics.jsonl";
  Metrics metrics(saves.run, fs::exists(lines) ? fs::file_size(lines) : 0);
  sync_folder(saves.run);
  for (const int64_t step : steps) {
    for (int64_t i = step - 3; i <= step; ++i) metrics.add_validation(i, {{"val_loss", 2.5}});
    state.step = step;
    state.metrics_bytes = metrics.sync();
    save_checkpoint(saves.run, state, s.params, s.optimizer,
                    {.newest = static_cast<int64_t>(saves.keep)});
    saves.steps.push_back(step);
  }
  saves.metrics = slurp(lines);
}

TEST_CASE("a power cut during the first save of a run loses nothing that was saved", "[crash]") {
  const Quiet quiet;
  Saves saves;
  DiskRecord record(saves.root.path());
  save_all(saves, {10});
  record.stop();
  CHECK(first_fault(record, wanted_states() / 5, saves.check(record)) == "");
}

TEST_CASE("a power cut during a save that deletes old checkpoints loses nothing that was saved",
          "[crash]") {
  const Quiet quiet;
  Saves saves;
  save_all(saves, {10, 20});
  saves.durable = 2;
  // A folder with such a name remains after an interrupted save or deletion.
  fs::create_directory(saves.run / "checkpoints/.unfinished-step-00000005");
  write_file(saves.run / "checkpoints/.unfinished-step-00000005/model.safetensors", "half");
  DiskRecord record(saves.root.path());
  save_all(saves, {30, 40});
  record.stop();
  REQUIRE(list_checkpoints(saves.run).size() == 2);
  CHECK(first_fault(record, wanted_states() / 5, saves.check(record)) == "");
}

/// Thrown to end a run at a fault point.
struct Stop {};

/// Checks the states of the disk that power cuts may leave during a run that is stopped once and
/// then resumed.
void cut_a_run(bool async_save, size_t states) {
  INFO("async_save = " << async_save);
  const Quiet quiet;
  Saves saves;
  TempFolder data(fast_folder());
  make_tiny_run(data.path());
  const auto start = [&] {
    train(load_config((data / "tiny.toml").string(),
                      {{"train.out_dir", saves.run.string()},
                       {"data.dir", (data / "data").string()},
                       {"model.n_layer", "1"},
                       {"model.n_embd", "8"},
                       {"train.steps", "8"},
                       {"train.eval_interval", "4"},
                       {"train.eval_batches", "1"},
                       {"checkpoint.interval", "2"},
                       {"checkpoint.async_save", async_save ? "true" : "false"},
                       {"log.level", "error"}}));
  };

  static int left = 0;
  fault_hook = [](const char* point) {
    if (std::string_view(point) == "step" && --left == 0) throw Stop();
    // Delay each save, so that the next steps write metrics before a background save ends.
    if (std::string_view(point) == "save: folder made")
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };

  DiskRecord record(saves.root.path());
  // Stops after the checkpoints of steps 2 and 4, with metrics of later steps already written.
  left = 6;
  CHECK_THROWS_AS(start(), Stop);
  start();
  record.stop();
  fault_hook = nullptr;
  configure_backend("cpu", 2, false);

  saves.steps = {2, 4, 6, 8};
  saves.metrics = slurp(saves.run / "metrics.jsonl");
  REQUIRE(record.points_before(record.calls().size(), "save: parent synced") == 4);
  CHECK(first_fault(record, states, saves.check(record)) == "");

  // The check must fail for a program that omits the syncs of files, or the syncs of folders.
  for (const bool of_folders : {false, true}) {
    DiskRecord without = record;
    without.drop_syncs(of_folders);
    CHECK(first_fault(without, wanted_states(), saves.check(without)) != "");
  }
}

TEST_CASE("a power cut during a run, or after the run resumes, loses nothing that was saved",
          "[crash]") {
  cut_a_run(false, wanted_states() / 5);
}

TEST_CASE("a power cut during a run that saves in the background loses nothing that was saved",
          "[crash]") {
  cut_a_run(true, wanted_states() / 5);
}

TEST_CASE(
    "a power cut while a file is replaced or lines are appended loses nothing that was written "
    "durably",
    "[crash]") {
  const Quiet quiet;
  TempFolder root(fast_folder());
  const std::vector<std::string> texts{"the first text\n", "",
                                       "a third, longer text that takes the place of both\n"};
  write_file(root / "file", texts[0]);

  DiskRecord record(root.path());
  std::vector<uint64_t> lengths{0};
  std::string lines;
  {
    Metrics metrics(root.path(), 0);
    sync_folder(root.path());
    for (int i = 1; i < 6; ++i) {
      metrics.add_validation(i, {{"val_loss", i}});
      if (i % 2 == 0) continue;
      lengths.push_back(metrics.sync());
      fault_point("test: synced");
    }
    lines = slurp(root / "metrics.jsonl");
  }
  for (size_t i = 1; i < texts.size(); ++i) {
    write_file_durably(root / "file", texts[i]);
    fault_point("test: written");
  }
  record.stop();

  const Check check = [&](const fs::path& folder, size_t n) -> std::string {
    const size_t written = record.points_before(n, "test: written");
    const std::string text = slurp(folder / "file");
    if (text != texts[written] && (written + 1 == texts.size() || text != texts[written + 1]))
      return "the file: " + text;
    const uint64_t length = lengths[record.points_before(n, "test: synced")];
    const std::string has = slurp(folder / "metrics.jsonl").substr(0, length);
    return has == lines.substr(0, length) ? "" : "the lines: " + has;
  };
  CHECK(first_fault(record, wanted_states() / 5, check) == "");

  // The check must fail for a program that omits the syncs of files, or the syncs of folders.
  for (const bool of_folders : {false, true}) {
    DiskRecord without = record;
    without.drop_syncs(of_folders);
    CHECK(first_fault(without, wanted_states() / 5, check) != "");
  }
}

}  // namespace
