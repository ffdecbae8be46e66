// Tests of the matmul ceiling: the highest rate of matrix products ever measured on a machine. MFU
// is relative to this rate. The rate is measured again when a run exceeds it.
#include <cstdlib>

#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/session/peak.h"

namespace {

using namespace lathe;
using namespace lathe::test;

struct CacheFolder : TempFolder {
  CacheFolder() { setenv("LATHE_CACHE", path().c_str(), 1); }
  ~CacheFolder() { unsetenv("LATHE_CACHE"); }
};

/// Replaces the rate of the ceiling in the cache, which must hold only one ceiling.
void overwrite(const fs::path& cache, double rate) {
  Json peaks = parse_json(slurp(cache / "peaks.json"), "peaks", Exit::internal);
  peaks.begin().value()["flops"] = rate;
  write_file(cache / "peaks.json", peaks.dump());
}

TEST_CASE(
    "the ceiling is the highest measured rate, and is provisional until the third measurement",
    "[matmul_peak]") {
  const CacheFolder cache;
  CHECK(!known_peak("cpu", 2, at::kFloat));
  const MatmulCeiling first = measure_peak(2, at::kFloat);
  CHECK(first.rate > 1e8);
  CHECK(first.measurements == 1);
  CHECK(first.is_provisional());
  overwrite(cache.path(), 1e20);  // the rate of a faster machine
  CHECK(measure_peak(2, at::kFloat).rate == 1e20);
  overwrite(cache.path(), 1e6);  // the rate of a busy machine
  const MatmulCeiling third = measure_peak(2, at::kFloat);
  CHECK(third.rate > 1e8);
  CHECK(third.measurements == 3);
  CHECK(!third.is_provisional());
  CHECK(known_peak("cpu", 2, at::kFloat)->rate == third.rate);
  write_file(cache / "peaks.json", "{\"damaged\": [");
  CHECK(!known_peak("cpu", 2, at::kFloat));
}

TEST_CASE("a ceiling that can't be saved is still reported, with a warning", "[matmul_peak]") {
  const TempFolder f;
  make_tiny_run(f.path());
  write_file(f / "cache", "");  // a file at the path of the folder LATHE_CACHE
  for (const auto& args :
       {std::vector<std::string>{"bench", "peak", "--threads", "1"},
        {"profile", "tiny.toml", "--steps=0:1", "--train.threads=1", "--train.device=cpu"}}) {
    INFO(args[0]);
    const Finished r = run({"lathe", args, f.path(), {}});
    CHECK(r.code == 0);
    CHECK_THAT(r.out, ContainsSubstring(args[0] == "bench" ? "flops" : "limited most"));
    CHECK_THAT(r.err, ContainsSubstring("matmul ceiling") &&
                          ContainsSubstring((f / "cache").string() + ": File exists") &&
                          ContainsSubstring("LATHE_CACHE"));
  }
}

TEST_CASE("a run above the ceiling measures the ceiling again, only once, and logs the new one",
          "[matmul_peak]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(run({"lathe", {"bench", "peak", "--threads", "1"}, f.path(), {}}).code == 0);
  const auto train = [&](const std::string& name) {
    const Finished r = run({"lathe",
                            {"train", "tiny.toml", "--train.threads=1", "--train.device=cpu",
                             "--train.out_dir=" + name},
                            f.path(),
                            {}});
    REQUIRE(r.code == 0);
    return slurp(f / name / "log.txt");
  };
  CHECK_THAT(train("young"), ContainsSubstring("`lathe bench peak`"));

  const std::string again = "measured again";
  overwrite(f / "cache", 1e4);
  const std::string log = train("low");
  const auto at = log.find(again);
  CHECK(at != std::string::npos);
  CHECK(log.find(again, at + 1) == std::string::npos);

  overwrite(f / "cache", 1e20);
  CHECK(train("high").find(again) == std::string::npos);
}

}  // namespace
