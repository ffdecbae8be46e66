// Kill trials: a run killed by SIGKILL at any moment and started again ends with the bits of one that never stopped.
#include <cstdlib>
#include <random>

#include "core/io/checksum.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "tests/catch.h"
#include "tests/process.h"
#include "train/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

constexpr int killed = 128 + 9;

class Trials {
 public:
  Trials() {
    make_tiny_run(folder_.path());
    const Finished f = start("reference", {});
    if (f.code != 0) fail(Exit::internal, "the reference run: ", f.err);
    seconds_ = f.seconds;
  }

  Finished start(const std::string& run, const std::map<std::string, std::string>& environment,
                 double kill_after = -1) {
    return lathe::test::run(
        {"lathe_faults", {"train", "tiny.toml", "--train.out_dir=" + run}, folder_.path(), environment, kill_after});
  }

  /// One run, killed as each of `kills` says (a point and a count, or seconds), then finished. True where at least one
  /// kill struck before the end.
  bool trial(const std::vector<std::pair<std::string, double>>& kills) {
    const std::string name = "run" + std::to_string(n_++);
    bool struck = false;
    for (const auto& [point, amount] : kills) {
      const Finished f =
          point.empty() ? start(name, {}, amount)
                        : start(name, {{"LATHE_TEST_KILL", point + " " + std::to_string(static_cast<int>(amount))}});
      INFO(point << " " << amount << ": " << f.err);
      CHECK((f.code == killed || f.code == 0));
      struck = struck || f.code == killed;
    }
    if (struck) {
      const Finished f = start(name, {});
      INFO("killed at " << kills[0].first << " " << kills[0].second << ", finished: " << f.err << f.out);
      CHECK(f.code == 0);
      CHECK(difference(folder_ / "reference", folder_ / name) == "");
    }
    std::error_code error;
    fs::remove_all(folder_ / name, error);
    return struck;
  }

  /// Trials of one kind until `wanted` of them struck.
  template <class F>
  void until(int wanted, F&& next) {
    int struck = 0;
    for (int attempt = 0; struck < wanted && attempt < 3 * wanted; ++attempt) struck += trial(next(struck)) ? 1 : 0;
    CHECK(struck >= wanted);
  }

  double seconds() const { return seconds_; }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
  double seconds_ = 0;
  int n_ = 0;
};

TEST_CASE("killed inside a save, at every stage", "[kill]") {
  Trials trials;
  const std::vector<std::string> stages{"save: folder made",   "save: model written",    "save: optimizer written",
                                        "save: state written", "save: manifest written", "save: folder synced",
                                        "save: renamed",       "save: parent synced"};
  for (const auto& stage : stages) {
    for (int nth : {1, 2, 4}) CHECK(trials.trial({{stage, nth}}));  // the first, a middle and the last save
  }
  CHECK(trials.trial({{"save: deleting an old one", 1}}));
}

TEST_CASE("killed after metrics ran past the checkpoint", "[kill]") {
  Trials trials;
  for (int step = 11; step <= 40; ++step) {
    if (step % 10 != 0) CHECK(trials.trial({{"step", step}}));
  }
  for (int step : {1, 9}) CHECK(trials.trial({{"step", step}}));  // before there is a checkpoint
}

TEST_CASE("killed anywhere: start-up, resume, by the clock, twice", "[kill]") {
  Trials trials;
  const char* given = std::getenv("LATHE_TEST_KILL_SEED");  // ./dev test draws and prints one
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device{}();
  WARN("seed of the kill times: " << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> when(0, trials.seconds());
  CHECK(trials.trial({{"start: locked", 1}}));
  CHECK(trials.trial({{"start: metrics cut", 1}}));
  CHECK(trials.trial({{"step", 15}, {"start: locked", 1}}));
  CHECK(trials.trial({{"step", 15}, {"start: metrics cut", 1}}));
  CHECK(trials.trial({{"step", 15}, {"step", 3}}));
  CHECK(trials.trial({{"save: model written", 2}, {"save: state written", 1}}));
  trials.until(10, [&](int) { return std::vector<std::pair<std::string, double>>{{"", when(random)}}; });
  trials.until(5, [&](int) {
    return std::vector<std::pair<std::string, double>>{{"", when(random)}, {"", when(random)}};
  });
}

/// Rewrites a checkpoint's manifest after a file was changed on purpose.
void seal(const fs::path& checkpoint) {
  Json manifest = parse_json(slurp(checkpoint / "manifest.json"), "manifest", Exit::internal);
  for (auto& [name, entry] : manifest["files"].items()) {
    entry = {{"bytes", fs::file_size(checkpoint / name)}, {"xxh3", file_checksum(checkpoint / name)}};
  }
  write_file(checkpoint / "manifest.json", manifest.dump());
}

TEST_CASE("the comparison notices a resume that is wrong", "[kill]") {
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
  seal(zeroed);
  CHECK(trials.start("zeroed", {}).code == 0);
  CHECK(difference(folder / "reference", folder / "zeroed") != "");

  stop_at_15("shifted");
  CHECK(trials.start("shifted", {{"LATHE_TEST_RNG_SHIFT", "1"}}).code == 0);
  CHECK(difference(folder / "reference", folder / "shifted") != "");

  const fs::path uncut = stop_at_15("uncut");
  Json state = parse_json(slurp(uncut / "state.json"), "state", Exit::internal);
  state["metrics_bytes"] = fs::file_size(folder / "uncut/metrics.jsonl");
  write_file(uncut / "state.json", state.dump());
  seal(uncut);
  CHECK(trials.start("uncut", {}).code == 0);
  CHECK_THAT(difference(folder / "reference", folder / "uncut"), ContainsSubstring("metrics line"));
}

}  // namespace
