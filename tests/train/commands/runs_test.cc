// Tests commands that read runs: tables, comparisons, curves and reports.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>

#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/commands/braille.h"
#include "train/commands/report.h"
#include "train/store/curves.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::vector<std::string> train_args(const std::string& out, std::vector<std::string> more = {}) {
  std::vector<std::string> args{"train",
                                "tiny.toml",
                                "--train.out_dir=" + out,
                                "--train.steps=8",
                                "--train.eval_interval=4",
                                "--checkpoint.interval=4"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST_CASE("runs lists runs with their states, and compare shows how two differ", "[runs]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, train_args("runs/a")).code == 0);
  REQUIRE(lathe_in(f, train_args("runs/deep/same")).code == 0);
  REQUIRE(lathe_in(f, train_args("runs/other", {"--train.seed=2", "--train.pause_at=5"})).code ==
          75);
  REQUIRE(lathe_in(f, train_args("runs/bad", {"--optim.lr=1e30", "--schedule.warmup_steps=0",
                                              "--optim.grad_clip=0"}))
              .code == 5);
  REQUIRE(lathe_in(f, train_args("runs/late", {"--train.max_time=1e-9"})).code == 75);
  REQUIRE(lathe_in(f, {"runs", "nowhere"}).code == 2);

  const auto listed = [&] {
    const Finished r = lathe_in(f, {"runs", "runs", "--json=true"});
    REQUIRE(r.code == 0);
    std::map<std::string, Json> found;
    for (const Json& j : parse_json(r.out, "runs", Exit::internal))
      found[j["run"].get<std::string>()] = j;
    return found;
  };
  auto all = listed();
  REQUIRE(all.size() == 5);
  CHECK(all["runs/late"]["state"] == "stopped");
  CHECK(all["runs/a"]["state"] == "finished");
  CHECK(all["runs/a"]["step"] == 8);
  CHECK(all["runs/a"]["steps"] == 8);
  CHECK(all["runs/a"]["val_loss"].is_number());
  CHECK(all["runs/deep/same"]["loss"] == all["runs/a"]["loss"]);
  CHECK(all["runs/other"]["state"] == "paused");
  CHECK(all["runs/other"]["step"] == 5);
  CHECK(all["runs/bad"]["state"] == "diverged");

  // If a run has resumed from a step before a divergence, the files of the divergence in the folder
  // `diverged` are older than the resume. The run then no longer counts as diverged.
  REQUIRE(fs::exists(f / "runs/bad/diverged"));
  for (const fs::path& bundle : list_folder(f / "runs/bad/diverged"))
    fs::last_write_time(bundle / "state.json",
                        fs::file_time_type::clock::now() - std::chrono::hours(1));
  REQUIRE(lathe_in(f, train_args("runs/bad", {"--train.pause_at=1"})).code == 75);
  CHECK(listed()["runs/bad"]["state"] == "paused");
  {
    const FolderLock lock(f / "runs/other");
    CHECK(listed()["runs/other"]["state"] == "running");
  }
  CHECK(listed()["runs/other"]["state"] == "paused");

  // A run whose newest metrics are later than its checkpoint is running unless its process ended.
  const auto append = [&](const char* name, const std::string& line) {
    std::ofstream(f / "runs/other" / name, std::ios::app) << line << "\n";
  };
  const std::string metrics = slurp(f / "runs/other/metrics.jsonl");
  append("metrics.jsonl", R"({"step":6,"loss":3.5})");
  CHECK(listed()["runs/other"]["state"] == "paused");
  append("events.jsonl", R"({"event":"start","step":5,"from":"","time":1})");
  CHECK(listed()["runs/other"]["state"] == "running");
  append("events.jsonl", R"({"event":"end","step":6,"exit":6,"time":1})");
  CHECK(listed()["runs/other"]["state"] == "paused");
  append("events.jsonl", R"({"event":"end","step":6,"exit":5,"time":1})");
  CHECK(listed()["runs/other"]["state"] == "diverged");
  append("events.jsonl", R"({"event":"start","step":5,"from":"","time":1})");
  append("events.jsonl", R"({"event":"end","step":6,"exit":75,"time":1})");
  write_file(f / "runs/other/metrics.jsonl", metrics);

  const Finished table = lathe_in(f, {"runs"});
  CHECK_THAT(table.out, ContainsSubstring("runs/deep/same"));
  CHECK(std::count(table.out.begin(), table.out.end(), '\n') == 6);

  CHECK_THAT(lathe_in(f, {"compare", "runs/a", "runs/deep/same"}).out,
             ContainsSubstring("No key") && ContainsSubstring("All 8 logged steps"));
  const Finished apart = lathe_in(f, {"compare", "runs/a", "runs/other", "--json=true"});
  const Json j = parse_json(apart.out, "compare", Exit::internal);
  CHECK(j["keys"]["train.seed"] == Json({"1337", "2"}));
  CHECK(j["bits_part_at"] == 0);  // the evaluation before the first step
  CHECK(j["common_logged_steps"] == 5);
  CHECK(j["curves"]["loss"]["largest_distance"].get<double>() > 0);
  // Insert a digit into one loss.
  std::string lines = slurp(f / "runs/deep/same/metrics.jsonl");
  const size_t at = lines.find("\"loss\":", lines.find("\"step\":6,"));
  lines.insert(lines.find('.', at) + 6, "7");
  write_file(f / "runs/deep/same/metrics.jsonl", lines);
  CHECK_THAT(lathe_in(f, {"compare", "runs/a", "runs/deep/same"}).out,
             ContainsSubstring("different bits is 6"));
  CHECK(lathe_in(f, {"compare", "runs/a", "data"}).code == 2);

  // Runs with the same losses may have other evaluations.
  for (const std::string metric : {"mae", "mse", "accuracy", "val_loss_docs"}) {
    for (const std::string run : {"x", "y"}) {
      fs::create_directories(f / run);
      write_file(f / run / "config.toml", "[train]\nsteps = 2\n");
      write_file(f / run / "metrics.jsonl",
                 str(R"({"step":1,"loss":2.5,"tokens":4,"time":1})", "\n", R"({"step":1,")", metric,
                     "\":", run == "x" ? "0.5" : "0.25", "}\n"));
    }
    INFO(metric);
    CHECK_THAT(lathe_in(f, {"compare", "x", "y"}).out, ContainsSubstring("different bits is 1"));
  }

  const Finished watched = lathe_in(f, {"watch", "runs/a", "runs/other"});
  CHECK(watched.code == 0);
  CHECK_THAT(watched.out,
             ContainsSubstring("runs/a  finished  step 8/8") && ContainsSubstring("\xe2\xa0"));
  CHECK(watched.out.find('\033') == std::string::npos);  // this output is not a terminal
  CHECK(std::count(watched.out.begin(), watched.out.end(), '\n') <= 24);
}

TEST_CASE("watch and report show the processes of a run", "[runs]") {
  const TempFolder f;
  fs::create_directories(f / "run");
  write_file(f / "run/config.toml", "[train]\nsteps = 9\n");
  write_file(f / "run/metrics.jsonl",
             "{\"step\":3,\"loss\":2.5,\"tokens\":4,\"time\":1,\"ranks\":["
             "{\"busy_ms\":10,\"wait_ms\":31,\"memory_bytes\":7000000,\"sent_bytes\":5},"
             "{\"busy_ms\":40,\"wait_ms\":1,\"memory_bytes\":6000000,\"sent_bytes\":5}]}\n");
  CHECK_THAT(
      lathe_in(f, {"watch", "run"}).out,
      ContainsSubstring("work 10-40 ms (rank 1), wait 1-31 ms (rank 0), memory 6-7 MB (rank 0)"));

  REQUIRE(lathe_in(f, {"report", "run"}).code == 0);
  const std::string page = slurp(f / "run/report.html");
  for (const char* curve : {"\"ranks/busy_ms/1\":{\"s\":[3],\"v\":[40.0]}",
                            "\"ranks/wait_ms/0\":{\"s\":[3],\"v\":[31.0]}"})
    CHECK_THAT(page, ContainsSubstring(curve));
}

/// Runs `lathe` in `folder` without the right of root to read all files. Returns nullopt if the
/// system has no setpriv to drop that right.
std::optional<Finished> lathe_without_rights(const TempFolder& folder,
                                             std::vector<std::string> args) {
  if (geteuid() != 0) return lathe_in(folder, std::move(args));
  if (!fs::exists("/usr/bin/setpriv")) return std::nullopt;

  args.insert(args.begin(), {"--bounding-set=-all", (binary_folder() / "lathe").string()});
  return run({.binary = "/usr/bin/setpriv",
              .args = std::move(args),
              .folder = folder.path(),
              .environment = {}});
}

TEST_CASE("runs that can't be read are named, and other runs are listed", "[runs]") {
  const TempFolder f;
  const std::string line = "{\"step\":3,\"loss\":2.5,\"tokens\":4,\"time\":1}\n";
  for (const char* name : {"a", "damaged", "deep/b", "no_config", "closed/c", ".unfinished-d"}) {
    fs::create_directories(f / "runs" / name);
    write_file(f / "runs" / name / "metrics.jsonl", line);
  }
  write_file(f / "runs/damaged/metrics.jsonl", line + "{\"step\":4,\n");
  write_file(f / "runs/no_config/config.toml", "[train\n");
  fs::permissions(f / "runs/closed", fs::perms::none);

  const auto listed = lathe_without_rights(f, {"runs", "--json"});
  const auto table = lathe_without_rights(f, {"runs"});
  fs::permissions(f / "runs/closed", fs::perms::owner_all);
  if (!listed || !table) {
    WARN("skipped: there is no setpriv");
    return;
  }

  CHECK(listed->code == 6);
  const Json json = parse_json(listed->out, "runs", Exit::internal);
  REQUIRE(json.size() == 2);
  CHECK(json[0]["run"] == "runs/a");
  CHECK(json[0]["step"] == 3);
  CHECK(json[1]["run"] == "runs/deep/b");
  for (const char* bad : {"runs/damaged/metrics.jsonl, line 1 from the end",
                          "runs/no_config/config.toml", "runs/closed"})
    CHECK_THAT(listed->err, ContainsSubstring("not listed") && ContainsSubstring(bad));
  CHECK(std::count(listed->err.begin(), listed->err.end(), '\n') == 3);

  CHECK(table->code == 6);
  CHECK(table->err == listed->err);
  CHECK_THAT(table->out, ContainsSubstring("runs/deep/b"));

  // If the only run is damaged, there is no table.
  const Finished alone = lathe_in(f, {"runs", "runs/damaged"});
  CHECK(alone.code == 6);
  CHECK_THAT(alone.out, ContainsSubstring("runs/damaged"));
  CHECK(std::count(alone.out.begin(), alone.out.end(), '\n') == 1);
}

TEST_CASE("report replaces a page that it wrote, and other files only with --force", "[runs]") {
  const TempFolder f;
  fs::create_directories(f / "run");
  write_file(f / "run/metrics.jsonl", "{\"step\":3,\"loss\":2.5,\"tokens\":4,\"time\":1}\n");
  write_file(f / "page.html", "<title>mine</title>");
  const Finished refused = lathe_in(f, {"report", "run", "--out", "page.html"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, ContainsSubstring("page.html") && ContainsSubstring("--force true"));
  CHECK(slurp(f / "page.html") == "<title>mine</title>");

  CHECK(lathe_in(f, {"report", "run", "--out", "page.html", "--force", "true"}).code == 0);
  CHECK(lathe_in(f, {"report", "run", "--out", "page.html"}).code == 0);
  CHECK(lathe_in(f, {"report", "run", "--out", "page.html", "--serve", "0"}).code == 0);

  // The same applies to the default path in the run's folder.
  write_file(f / "run/report.html", "mine");
  CHECK(lathe_in(f, {"report", "run"}).code == 2);
  CHECK(slurp(f / "run/report.html") == "mine");
  write_file(f / "run/report.html", "");
  CHECK(lathe_in(f, {"report", "run"}).code == 0);
  CHECK(lathe_in(f, {"report", "run"}).code == 0);
}

TEST_CASE("curves follow metrics.jsonl as it grows and when it is cut back", "[runs]") {
  const TempFolder f;
  const fs::path path = f / "metrics.jsonl";
  write_file(path,
             "{\"step\":1,\"loss\":2.5,\"tokens\":4,\"mfu\":null,\"time\":1}\n{\"step\":2,\"lo");
  Curves c(f.path());
  CHECK(c.read());
  CHECK(c.find("loss")->values == std::vector<double>{2.5});
  CHECK(c.find("mfu") == nullptr);
  CHECK(!c.read());
  std::ofstream(path, std::ios::app) << "ss\":\"nan\"}\n{\"step\":2,\"val_loss\":3}\n"
                                     << "{\"step\":2,\"layers\":{\"a.b\":{\"act_max\":7}}}\n";
  CHECK(c.read());
  CHECK(std::isnan(c.find("loss")->values.at(1)));
  CHECK(c.find("layers/act_max/a.b")->steps == std::vector<int64_t>{2});
  write_file(path, "{\"step\":1,\"loss\":4}\n");
  CHECK(c.read());
  CHECK(c.find("loss")->values == std::vector<double>{4});
  CHECK(c.find("val_loss") == nullptr);
  write_file(path, "{\"step\":1,\"loss\":4}\nnonsense\n{\"step\":2}\n");
  CHECK_THAT(error_of([&] { c.read(); }), ContainsSubstring("metrics.jsonl:2"));
}

TEST_CASE("the lowest value of a curve is NaN only if all of its values are NaN", "[runs]") {
  const double nan = std::nan("");
  const auto found = [](const std::vector<double>& values) {
    Series s;
    for (size_t i = 0; i < values.size(); ++i) s.steps.push_back(10 * static_cast<int64_t>(i));
    s.values = values;
    return lowest(s);
  };
  CHECK(found({3, 2, 4}) == std::pair<int64_t, double>(10, 2));
  CHECK(found({3, 2, 2}) == std::pair<int64_t, double>(10, 2));  // the earliest of equal values
  CHECK(found({nan, 3, 2}) == std::pair<int64_t, double>(20, 2));
  CHECK(found({3, nan, 2}) == std::pair<int64_t, double>(20, 2));
  CHECK(found({2, 3, nan}) == std::pair<int64_t, double>(0, 2));
  CHECK(found({nan, HUGE_VAL}) == std::pair<int64_t, double>(10, HUGE_VAL));
  CHECK(std::isnan(found({nan, nan}).second));
}

TEST_CASE("reduced curves keep the extremes and the last step", "[runs]") {
  std::vector<int64_t> steps(10007);
  std::iota(steps.begin(), steps.end(), 1);
  std::vector<double> values(steps.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.01 * static_cast<double>(i));
  values[5000] = 9;
  values[77] = -9;
  values[9000] = std::nan("");
  const Reduced r = reduce(steps, values, 100);
  REQUIRE(r.mean.size() == 100);
  CHECK(*std::max_element(r.high.begin(), r.high.end()) == 9);
  CHECK(*std::min_element(r.low.begin(), r.low.end()) == -9);
  CHECK(r.steps.back() == 10007);
  for (size_t i = 0; i < 100; ++i) CHECK((r.low[i] <= r.mean[i] && r.mean[i] <= r.high[i]));
  const Reduced same = reduce({1, 2}, {3, 4}, 100);
  CHECK(same.mean == std::vector<double>{3, 4});
  CHECK(same.low.empty());
}

TEST_CASE("braille plots show lines, spikes and colors", "[runs]") {
  // The chart has 11 columns of 2 dots and 4 rows of 4 dots. A straight line goes through its
  // corners.
  const auto rising = braille_plot({{{0, 1}, {0, 1}}}, 20, 5, false);
  REQUIRE(rising.size() == 5);
  CHECK(rising[0] == "       1         \xe2\xa2\x80\xe2\xa1\xa4\xe2\xa0\x9e");
  CHECK(rising[3] == "       0 \xe2\xa3\xa0\xe2\xa0\xb4\xe2\xa0\x8b\xe2\xa0\x81       ");
  CHECK(rising[4] == "         0         1");
  // A single spike among 10000 values is visible.
  BrailleCurve flat;
  for (int i = 0; i < 10000; ++i) {
    flat.x.push_back(i);
    flat.y.push_back(i == 4321 ? 5 : 1);
  }
  const auto spike = braille_plot({flat}, 60, 10, false);
  CHECK(spike[0].find("\xe2") != std::string::npos);
  CHECK(spike[0].substr(0, 9) == "       5 ");
  CHECK_THAT(braille_plot({{{1}, {std::nan("")}}}, 40, 6, false)[0],
             ContainsSubstring("nothing yet"));
  CHECK_THAT(braille_plot({flat}, 60, 10, true)[0], ContainsSubstring(curve_color(0)));
}

TEST_CASE("braille plots draw any numbers at any size", "[runs]") {
  constexpr double inf = std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN(),
                   most = std::numeric_limits<double>::max(),
                   tiny = std::numeric_limits<double>::denorm_min();
  const std::vector<std::vector<double>> curves{{1e308, -1e308},
                                                {-most, most, 0, -most},
                                                {nan, inf, -inf},
                                                {nan, 2, inf, 1, -inf},
                                                {3, 3, 3},
                                                {0, tiny},
                                                {-tiny, 0, tiny},
                                                {tiny, most},
                                                {1},
                                                {-0.0},
                                                {}};
  for (const auto& y : curves) {
    std::vector<double> x(y.size());
    std::iota(x.begin(), x.end(), 1);
    const bool drawn = std::any_of(y.begin(), y.end(), [](double v) { return std::isfinite(v); });
    for (const size_t width : {1, 20, 21, 80}) {
      for (const size_t height : {0, 1, 4, 24}) {
        const auto lines = braille_plot({{x, y}}, width, height, true);
        CHECK(lines.size() == std::max<size_t>(height, 4));
        CHECK(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
                return line.find("\xe2") != std::string::npos;
              }) == drawn);
      }
    }
  }

  // A range whose size overflows a double is drawn from its lower to its upper end.
  const auto lines = braille_plot({{{1, 2}, {-1e308, 1e308}}}, 20, 4, false);
  CHECK_THAT(lines[0], ContainsSubstring("1e+308"));
  CHECK_THAT(lines[2], ContainsSubstring("-1e+308"));
  CHECK(lines[0].substr(0, 9 + 5).find("\xe2") ==
        std::string::npos);  // the left part of the top line is empty
  CHECK(lines[2].substr(9, 1) == "\xe2");

  // Steps of many digits do not make the axis wider than requested.
  for (const std::string& line : braille_plot({{{1e9, 2e15}, {1, 2}}}, 20, 4, false))
    CHECK(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }) <= 20);
}

TEST_CASE("watch shows a run of any name, with any losses", "[runs]") {
  const TempFolder f;
  const std::string name = "a\x1b]0;t\x1b";  // an unfinished escape sequence, and one at the end
  fs::create_directory(f / name);
  write_file(
      f / (name + "/metrics.jsonl"),
      "{\"step\":1,\"loss\":1e308,\"mfu\":null}\n{\"step\":2,\"loss\":-1e308,\"mfu\":null}\n");
  const Finished watched = lathe_in(f, {"watch", name});
  CHECK(watched.code == 0);
  CHECK_THAT(watched.out, ContainsSubstring("  step 2") && ContainsSubstring("-1e+308"));
}

}  // namespace
