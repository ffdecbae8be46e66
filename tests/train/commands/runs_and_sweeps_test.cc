// Runs seen from outside: tables, comparisons, curves, reports, sweeps, completion.
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
#include "train/commands/commands.h"
#include "train/commands/report.h"
#include "train/commands/shell.h"
#include "train/commands/sweep_plan.h"
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

TEST_CASE("runs, their states, and what differs between two", "[runs_and_sweeps]") {
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
  {
    const FolderLock lock(f / "runs/other");
    CHECK(listed()["runs/other"]["state"] == "running");
  }
  CHECK(listed()["runs/other"]["state"] == "paused");
  const Finished table = lathe_in(f, {"runs"});
  CHECK_THAT(table.out, ContainsSubstring("runs/deep/same"));
  CHECK(std::count(table.out.begin(), table.out.end(), '\n') == 6);

  CHECK_THAT(
      lathe_in(f, {"compare", "runs/a", "runs/deep/same"}).out,
      ContainsSubstring("No key differs") &&
          ContainsSubstring("All 8 logged steps that they have in common have the same bits"));
  const Finished apart = lathe_in(f, {"compare", "runs/a", "runs/other", "--json=true"});
  const Json j = parse_json(apart.out, "compare", Exit::internal);
  CHECK(j["keys"]["train.seed"] == Json({"1337", "2"}));
  CHECK(j["bits_part_at"] == 0);  // the evaluation before the first step
  CHECK(j["common_logged_steps"] == 5);
  CHECK(j["curves"]["loss"]["largest_distance"].get<double>() > 0);
  // One digit of one loss.
  std::string lines = slurp(f / "runs/deep/same/metrics.jsonl");
  const size_t at = lines.find("\"loss\":", lines.find("\"step\":6,"));
  lines.insert(lines.find('.', at) + 6, "7");
  write_file(f / "runs/deep/same/metrics.jsonl", lines);
  CHECK_THAT(lathe_in(f, {"compare", "runs/a", "runs/deep/same"}).out,
             ContainsSubstring("The first logged step with different bits is 6"));
  CHECK(lathe_in(f, {"compare", "runs/a", "data"}).code == 2);

  const Finished watched = lathe_in(f, {"watch", "runs/a", "runs/other"});
  CHECK(watched.code == 0);
  CHECK_THAT(watched.out,
             ContainsSubstring("runs/a  finished  step 8/8") && ContainsSubstring("\xe2\xa0"));
  CHECK(watched.out.find('\033') == std::string::npos);  // no terminal
  CHECK(std::count(watched.out.begin(), watched.out.end(), '\n') <= 24);
}

/// `lathe` in `folder`, without root's right to read everything; nothing where a system has no way
/// to give it up.
std::optional<Finished> lathe_without_rights(const TempFolder& folder,
                                             std::vector<std::string> args) {
  if (geteuid() != 0) return lathe_in(folder, std::move(args));
  if (!fs::exists("/usr/bin/setpriv")) return std::nullopt;

  args.insert(args.begin(), {"--bounding-set=-all", (binary_folder() / "lathe").string()});
  return run({"/usr/bin/setpriv", std::move(args), folder.path(), {}});
}

TEST_CASE("runs that can't be read are named, and the others listed", "[runs_and_sweeps]") {
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
  if (!listed || !table) return;

  CHECK(listed->code == 6);
  const Json json = parse_json(listed->out, "runs", Exit::internal);
  REQUIRE(json.size() == 2);
  CHECK(json[0]["run"] == "runs/a");
  CHECK(json[0]["step"] == 3);
  CHECK(json[1]["run"] == "runs/deep/b");
  for (const char* bad : {"runs/damaged/metrics.jsonl, line 1 from the end",
                          "runs/no_config/config.toml", "runs/closed"})
    CHECK_THAT(listed->err,
               ContainsSubstring(std::string("not listed: ")) && ContainsSubstring(bad));
  CHECK(std::count(listed->err.begin(), listed->err.end(), '\n') == 3);

  CHECK(table->code == 6);
  CHECK(table->err == listed->err);
  CHECK_THAT(table->out, ContainsSubstring("runs/deep/b"));

  // Of a run alone that is damaged there is no table.
  const Finished alone = lathe_in(f, {"runs", "runs/damaged"});
  CHECK(alone.code == 6);
  CHECK(alone.out == "no run in runs/damaged can be read\n");
}

TEST_CASE("report replaces a page that it wrote, and another file only by force",
          "[runs_and_sweeps]") {
  const TempFolder f;
  fs::create_directories(f / "run");
  write_file(f / "run/metrics.jsonl", "{\"step\":3,\"loss\":2.5,\"tokens\":4,\"time\":1}\n");
  write_file(f / "page.html", "<title>mine</title>");
  const Finished refused = lathe_in(f, {"report", "run", "--out", "page.html"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err,
             ContainsSubstring("page.html is there already, and lathe report did not write it"));
  CHECK(slurp(f / "page.html") == "<title>mine</title>");

  CHECK(lathe_in(f, {"report", "run", "--out", "page.html", "--force", "true"}).code == 0);
  CHECK(lathe_in(f, {"report", "run", "--out", "page.html"}).code == 0);
  CHECK(lathe_in(f, {"report", "run", "--out", "page.html", "--serve", "0"}).code == 0);

  // The page in the run's folder, where nobody named it.
  write_file(f / "run/report.html", "mine");
  CHECK(lathe_in(f, {"report", "run"}).code == 2);
  CHECK(slurp(f / "run/report.html") == "mine");
  write_file(f / "run/report.html", "");
  CHECK(lathe_in(f, {"report", "run"}).code == 0);
  CHECK(lathe_in(f, {"report", "run"}).code == 0);
}

TEST_CASE("metrics are followed as they grow and where they are cut back", "[runs_and_sweeps]") {
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

TEST_CASE("the lowest value of a curve is a number where there is one", "[runs_and_sweeps]") {
  const double nan = std::nan("");
  const auto found = [](const std::vector<double>& values) {
    Series s;
    for (size_t i = 0; i < values.size(); ++i) s.steps.push_back(10 * static_cast<int64_t>(i));
    s.values = values;
    return lowest(s);
  };
  CHECK(found({3, 2, 4}) == std::pair<int64_t, double>(10, 2));
  CHECK(found({3, 2, 2}) == std::pair<int64_t, double>(10, 2));  // the earliest
  CHECK(found({nan, 3, 2}) == std::pair<int64_t, double>(20, 2));
  CHECK(found({3, nan, 2}) == std::pair<int64_t, double>(20, 2));
  CHECK(found({2, 3, nan}) == std::pair<int64_t, double>(0, 2));
  CHECK(found({nan, HUGE_VAL}) == std::pair<int64_t, double>(10, HUGE_VAL));
  CHECK(std::isnan(found({nan, nan}).second));
}

TEST_CASE("curves are reduced without losing their ends", "[runs_and_sweeps]") {
  std::vector<int64_t> steps(10007);
  std::iota(steps.begin(), steps.end(), 1);
  std::vector<double> values(steps.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(0.01 * static_cast<double>(i));
  values[5000] = 9, values[77] = -9, values[9000] = std::nan("");
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

TEST_CASE("braille curves", "[runs_and_sweeps]") {
  // 11 columns of 2 dots and 4 rows of 4: a straight line goes through the corners.
  const auto rising = braille_plot({{{0, 1}, {0, 1}}}, 20, 5, false);
  REQUIRE(rising.size() == 5);
  CHECK(rising[0] == "       1         \xe2\xa2\x80\xe2\xa1\xa4\xe2\xa0\x9e");
  CHECK(rising[3] == "       0 \xe2\xa3\xa0\xe2\xa0\xb4\xe2\xa0\x8b\xe2\xa0\x81       ");
  CHECK(rising[4] == "         0         1");
  // A spike among 10000 values is there.
  BrailleCurve flat;
  for (int i = 0; i < 10000; ++i) flat.x.push_back(i), flat.y.push_back(i == 4321 ? 5 : 1);
  const auto spike = braille_plot({flat}, 60, 10, false);
  CHECK(spike[0].find("\xe2") != std::string::npos);
  CHECK(spike[0].substr(0, 9) == "       5 ");
  CHECK_THAT(braille_plot({{{1}, {std::nan("")}}}, 40, 6, false)[0],
             ContainsSubstring("nothing yet"));
  CHECK_THAT(braille_plot({flat}, 60, 10, true)[0], ContainsSubstring(curve_color(0)));
}

Axis axis(const std::string& key, const std::string& text) { return read_axis(key, text, "here"); }

TEST_CASE("any numbers are drawn, at any size", "[runs_and_sweeps]") {
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

  // The ends of a range that no double holds the size of are at its ends.
  const auto lines = braille_plot({{{1, 2}, {-1e308, 1e308}}}, 20, 4, false);
  CHECK_THAT(lines[0], ContainsSubstring("1e+308"));
  CHECK_THAT(lines[2], ContainsSubstring("-1e+308"));
  CHECK(lines[0].substr(0, 9 + 5).find("\xe2") ==
        std::string::npos);  // a dot at the right, not over the whole line
  CHECK(lines[2].substr(9, 1) == "\xe2");

  // Steps of many digits do not make the axis wider than asked for.
  for (const std::string& line : braille_plot({{{1e9, 2e15}, {1, 2}}}, 20, 4, false))
    CHECK(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }) <= 20);
}

TEST_CASE("a run of any name, with any losses, is watched", "[runs_and_sweeps]") {
  const TempFolder f;
  const std::string name = "a\x1b]0;t\x1b";  // an escape without an end, and one at the end
  fs::create_directory(f / name);
  write_file(
      f / (name + "/metrics.jsonl"),
      "{\"step\":1,\"loss\":1e308,\"mfu\":null}\n{\"step\":2,\"loss\":-1e308,\"mfu\":null}\n");
  const Finished watched = lathe_in(f, {"watch", name});
  CHECK(watched.code == 0);
  CHECK_THAT(watched.out, ContainsSubstring("  step 2") && ContainsSubstring("-1e+308"));
}

TEST_CASE("points of a sweep", "[runs_and_sweeps]") {
  const auto grid =
      make_points({axis("optim.lr", "1e-3, 3e-3"), axis("train.seed", "1,2,3")}, 0, 0);
  REQUIRE(grid.size() == 6);
  CHECK(grid[0] == Overrides{{"optim.lr", "1e-3"}, {"train.seed", "1"}});
  CHECK(grid[4] == Overrides{{"optim.lr", "3e-3"}, {"train.seed", "2"}});
  const auto some = make_points({axis("optim.lr", "1,2,3,4,5"), axis("train.seed", "1,2,3")}, 9, 7);
  REQUIRE(some.size() == 9);
  for (size_t i = 0; i < 9; ++i) CHECK(std::count(some.begin(), some.end(), some[i]) == 1);
  CHECK(some == make_points({axis("optim.lr", "1,2,3,4,5"), axis("train.seed", "1,2,3")}, 9, 7));
  CHECK(some != make_points({axis("optim.lr", "1,2,3,4,5"), axis("train.seed", "1,2,3")}, 9, 8));
  int low = 0;
  for (const Overrides& p :
       make_points({axis("optim.lr", "1e-4..1e-2"), axis("model.n_layer", "2..4")}, 200, 1)) {
    const double lr = std::stod(p[0].second), layers = std::stod(p[1].second);
    CHECK((lr >= 0.99e-4 && lr <= 1.01e-2));
    CHECK((layers == 2 || layers == 3 || layers == 4));
    low += lr < 1e-3 ? 1 : 0;
  }
  CHECK((low > 70 && low < 130));  // half, on a logarithmic scale
  // No point is drawn twice, also where that leaves fewer than are wanted.
  for (const int64_t samples : {3, 5}) {
    const auto points = make_points({axis("model.n_layer", "1..3")}, samples, 1);
    CHECK(std::set<Overrides>(points.begin(), points.end()).size() == 3);
    CHECK(points.size() == 3);
  }
  CHECK_THAT(error_of([] { axis("optim.lr", "1e-2..1e-4"); }),
             ContainsSubstring("ends before it begins"));
  CHECK_THAT(error_of([] { axis("optim.lr", "1,,2"); }), ContainsSubstring("empty value"));
  CHECK_THAT(error_of([] { axis("optim.lr", "1,1"); }), ContainsSubstring("twice"));
  CHECK_THAT(error_of([] { make_points({axis("optim.lr", "0..1")}, 0, 0); }),
             ContainsSubstring("as --samples"));
  CHECK(make_rungs(900, 100, 3, 50) == std::vector<int64_t>{100, 300, 900});
  // Rungs are whole numbers of evaluations, rounded to nearest: 333.3 to 350, and 111.1 to 100.
  CHECK(make_rungs(1000, 100, 3, 50) == std::vector<int64_t>{100, 350, 1000});
  CHECK_THAT(error_of([] { make_rungs(900, 10, 3, 300); }), ContainsSubstring("too seldom"));
}

TEST_CASE("values that are lists have semicolons between them, and numbers are compared",
          "[runs_and_sweeps]") {
  CHECK(axis("data.mix", "code:0.5,text:0.5").values.size() == 1);
  CHECK(axis("adapters.layers", "*.q,*.k; *.v").values ==
        std::vector<std::string>{"*.q,*.k", "*.v"});
  CHECK_THAT(error_of([] { axis("adapters.layers", "*.q;"); }), ContainsSubstring("semicolons"));
  CHECK_THAT(error_of([] { axis("optim.lr", "1e-3,0.001"); }), ContainsSubstring("twice"));
}

TEST_CASE("successive halving promotes the best, and resumes what was begun", "[runs_and_sweeps]") {
  // Loss of point i is i: with eta 3, of 9 points three come to the second rung and one, the best,
  // to the last.
  std::vector<PointState> points(9);
  std::vector<bool> running(9, false);
  std::map<int, int> ran;  // by rung
  while (const auto job = next_job(points, running, 3, 3)) {
    const auto [i, rung] = *job;
    ++ran[rung];
    points[i].target = rung;
    CHECK(next_job(points, running, 3, 3) == job);  // killed here, it comes first
    CHECK(points[i].losses.size() == static_cast<size_t>(rung));
    points[i].losses.push_back(static_cast<double>((i + 4) % 9));  // the best is point 5
    REQUIRE(ran[0] <= 9);
  }
  CHECK(ran[0] == 9);
  CHECK(ran[1] >= 3);
  CHECK(ran[1] <= 6);  // who was promoted early may have been passed later
  CHECK(ran[2] >= 1);
  CHECK(points[5].losses.size() == 3);
  CHECK(ranking(points)[0] == 5);
  // One that diverged is passed over, and what runs is not given twice.
  std::vector<PointState> two(2);
  two[0].target = 0, two[0].end = "diverged";
  CHECK(next_job(two, {false, false}, 1, 3) == std::pair<size_t, int>(1, 0));
  CHECK(next_job(two, {false, true}, 1, 3) == std::nullopt);
  const PointState kept = point_state(to_json(points[5]), "here");
  CHECK((kept.target == 2 && kept.losses == points[5].losses));

  // A loss that is not a number comes last, wherever it stands.
  const std::vector<double> losses{std::nan(""), 3, std::nan(""), 1, 2, std::nan("")};
  std::vector<PointState> some(losses.size());
  for (size_t i = 0; i < losses.size(); ++i) some[i].target = 0, some[i].losses = {losses[i]};
  CHECK(ranking(some) == std::vector<size_t>{3, 4, 1, 0, 2, 5});
  CHECK(next_job(some, std::vector<bool>(6, false), 2, 6) == std::pair<size_t, int>(3, 1));
}

TEST_CASE("points of a sweep have names by their values", "[runs_and_sweeps]") {
  CHECK(point_names({{{"optim.lr", "1e-3"}, {"train.seed", "1"}},
                     {{"optim.lr", "1e-3"}, {"train.seed", "2"}}}) ==
        std::vector<std::string>{"lr=1e-3,seed=1", "lr=1e-3,seed=2"});
  // Keys with one ending keep their sections; what a path may not have is replaced.
  CHECK(point_names({{{"model.kind", "gpt"}, {"optim.kind", "sgd"}}}) ==
        std::vector<std::string>{"model.kind=gpt,optim.kind=sgd"});
  const auto paths = point_names({{{"data.dir", "a/b"}},
                                  {{"data.dir", "a b"}},
                                  {{"data.dir", "x.json"}},
                                  {{"data.dir", std::string(300, 'y')}}});
  CHECK(paths[0] == "dir=a_b");
  CHECK(paths[1] == "dir=a_b-2");
  CHECK(paths[2] == "dir=x.json_");
  CHECK(paths[3].size() == 100);
}

TEST_CASE("results are averaged over seeds and folds", "[runs_and_sweeps]") {
  // The best run of all is of a rate whose mean is worse.
  std::vector<Overrides> points;
  std::vector<PointState> states;
  const auto add = [&](const char* lr, const char* seed, const char* fold, double loss) {
    points.push_back({{"data.fold", fold}, {"optim.lr", lr}, {"train.seed", seed}});
    states.push_back({.target = 0, .losses = {loss}, .end = ""});
  };
  add("1e-3", "1", "0", 1), add("1e-3", "2", "0", 7), add("1e-3", "1", "1", 4),
      add("1e-3", "2", "1", 4);
  add("3e-3", "1", "0", 3), add("3e-3", "2", "0", 3), add("3e-3", "1", "1", 3),
      add("3e-3", "2", "1", 3);
  auto groups = group_points(points, states, 1);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].keys == Overrides{{"optim.lr", "3e-3"}});
  CHECK((groups[0].mean == 3 && groups[0].deviation == 0 && groups[0].finished == 4));
  CHECK(groups[1].points == std::vector<size_t>{0, 1, 2, 3});
  CHECK((groups[1].mean == 4 && groups[1].deviation == Approx(std::sqrt(6.0))));

  // A group in which a run diverged comes last, with the mean of the others.
  states[5].end = "diverged", states[5].losses.clear();
  groups = group_points(points, states, 1);
  CHECK(groups[0].keys == Overrides{{"optim.lr", "1e-3"}});
  CHECK((groups[1].finished == 3 && groups[1].mean == 3));
  // One run has no deviation.
  groups = group_points({points[0]}, {states[0]}, 1);
  CHECK((groups[0].mean == 1 && std::isnan(groups[0].deviation)));
}

/// Checks the means of a sweep over two rates with two seeds each, and what its report draws.
void check_means(const fs::path& folder, const Finished& sweep) {
  std::map<std::string, std::vector<double>> losses;  // by rate
  for (const auto& entry : fs::directory_iterator(folder / "points")) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".json")) continue;
    losses[name.substr(3, 4)].push_back(
        parse_json(slurp(entry.path()), name, Exit::internal)["losses"][0].get<double>());
  }
  REQUIRE(losses.size() == 2);
  const std::string table = slurp(folder / "table.txt");
  INFO(table);
  double best = HUGE_VAL;
  for (const auto& [lr, of] : losses) {
    REQUIRE(of.size() == 2);
    const double mean = (of[0] + of[1]) / 2;
    best = std::min(best, mean);
    char row[100];
    std::snprintf(row, sizeof row, "%s      %.4f         %.4f     2", lr.c_str(), mean,
                  std::fabs(of[0] - of[1]) / std::sqrt(2.0));
    CHECK_THAT(table, ContainsSubstring(row));
  }
  char line[100];
  std::snprintf(line, sizeof line, "mean validation loss %.4f (deviation ", best);
  CHECK_THAT(sweep.out, ContainsSubstring("best      optim.lr=") && ContainsSubstring(line));
  CHECK_THAT(table, ContainsSubstring("points/lr=1e-3,seed=1"));

  if (!fs::exists(folder / "report.html")) return;  // without the chart library
  const std::string page = slurp(folder / "report.html");
  CHECK_THAT(page, ContainsSubstring("\"sweep\":[{\"key\":\"optim.lr\",\"points\":[[\"1e-3\","));
  CHECK_THAT(page, ContainsSubstring("{\"key\":\"train.seed\",\"points\":[[\"1\","));
}

TEST_CASE("a random search trains each draw with every seed", "[runs_and_sweeps]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const Finished r =
      lathe_in(f, {"sweep", "tiny.toml", "--method=random", "--samples=2", "--optim.lr=1e-4..1e-2",
                   "--train.seed=1,2,3", "--train.steps=2", "--train.eval_interval=2", "--out=s"});
  INFO(r.out << r.err);
  REQUIRE(r.code == 0);
  std::map<std::string, int> runs;  // by rate
  for (const fs::path& run : find_runs(f / "s")) {
    const std::string name = run.filename().string();
    ++runs[name.substr(0, name.find(','))];
  }
  REQUIRE(runs.size() == 2);
  for (const auto& [lr, n] : runs) CHECK(n == 3);
  CHECK_THAT(r.out, ContainsSubstring("3 runs)"));
}

TEST_CASE("a sweep that is killed loses and repeats no point", "[runs_and_sweeps]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto sweep = [&](const std::string& out, const std::string& kill) {
    std::map<std::string, std::string> environment;
    if (!kill.empty()) environment["LATHE_TEST_KILL"] = kill;
    return run({"lathe_faults",
                {"sweep", "tiny.toml", "--optim.lr=1e-3,3e-2", "--train.seed=1,2",
                 "--train.steps=8", "--train.eval_interval=4", "--checkpoint.interval=2", "--out",
                 out, "--jobs=2", "--train.threads=1"},
                f.path(),
                environment});
  };
  const Finished whole = sweep("whole", "");
  INFO(whole.out << whole.err);
  REQUIRE(whole.code == 0);
  CHECK_THAT(whole.out, ContainsSubstring("sweep     4 runs of tiny.toml") &&
                            ContainsSubstring("steps     32 in total"));
  check_means(f / "whole", whole);
  REQUIRE(lathe_in(f, {"config", "check", "whole/best.toml"}).code == 0);
  const std::vector<std::string> kills{"sweep: target kept 2", "sweep: point ended 1",
                                       "sweep: result kept 1"};
  std::map<std::string, std::string> done;  // events of points whose result was kept
  const std::vector<std::string> points{"lr=1e-3,seed=1", "lr=1e-3,seed=2", "lr=3e-2,seed=1",
                                        "lr=3e-2,seed=2"};
  const auto check_done = [&] {
    for (const auto& [name, before] : done)
      CHECK(slurp(f / ("killed/points/" + name + "/events.jsonl")) == before);
    for (const std::string& name : points) {
      const fs::path state = f / ("killed/points/" + name + ".json");
      if (fs::exists(state) && slurp(state).find("\"losses\":[]") == std::string::npos)
        done[name] = slurp(f / ("killed/points/" + name + "/events.jsonl"));
    }
  };
  for (const std::string& kill : kills) {
    CHECK(sweep("killed", kill).code == 128 + 9);
    check_done();
  }
  CHECK(!done.empty());
  const Finished last = sweep("killed", "");
  INFO(last.out << last.err);
  CHECK(last.code == 0);
  check_done();
  CHECK(done.size() == 4);
  CHECK(slurp(f / "killed/table.txt") == slurp(f / "whole/table.txt"));
  for (const std::string& name : points)
    CHECK(difference(f / ("whole/points/" + name), f / ("killed/points/" + name)) == "");
  CHECK(difference(f / "whole/points" / points[0], f / "whole/points" / points[1]) !=
        "");  // control: the points are not one
  // Nothing is left to do, and nothing is done.
  CHECK(sweep("killed", "").code == 0);
  check_done();
  const Finished other =
      lathe_in(f, {"sweep", "tiny.toml", "--optim.lr=1e-3,3e-3", "--out", "killed"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, ContainsSubstring("holds another sweep"));
}

TEST_CASE("a sweep that is stopped while its points start ends with 75, and is resumed exactly",
          "[runs_and_sweeps]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto sweep = [&](const std::string& out, std::map<std::string, std::string> environment) {
    return run({"lathe_faults",
                {"sweep", "tiny.toml", "--train.seed=1,2", "--train.steps=1500",
                 "--train.eval_interval=1500", "--checkpoint.interval=1500", "--out", out,
                 "--jobs=2", "--train.threads=1"},
                f.path(),
                std::move(environment)});
  };
  REQUIRE(sweep("reference", {}).code == 0);

  // The stop is requested when the first or the second process exists, and reaches the processes so
  // many milliseconds later: while the program is loaded, parses its arguments, reads its config,
  // or trains.
  int stop = 0;
  for (const int after_ms : {0, 1, 5, 20, 50, 100, 150, 200, 300}) {
    const Finished stopped =
        sweep("stopped", {{"LATHE_TEST_STOP", str("sweep: point started ", 1 + stop++ % 2)},
                          {"LATHE_TEST_SLOW", str("sweep: point started ", after_ms)}});
    INFO(after_ms << " ms: " << stopped.out << stopped.err);
    CHECK(stopped.code == 75);
    CHECK_THAT(stopped.out, ContainsSubstring("stopped; run the same command again to resume"));
  }
  REQUIRE(sweep("stopped", {}).code == 0);
  for (const std::string name : {"seed=1", "seed=2"})
    CHECK(difference(f / ("reference/points/" + name), f / ("stopped/points/" + name)) == "");
}

TEST_CASE("a sweep lists a point that ends without a finite loss as diverged",
          "[runs_and_sweeps]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  for (const std::vector<std::string>& method :
       {std::vector<std::string>{}, {"--method=asha", "--eta=2", "--samples=2"}}) {
    std::vector<std::string> words{"sweep",
                                   "tiny.toml",
                                   "--optim.lr=1e-3,1e30",
                                   "--optim.kind=sgd",
                                   "--optim.grad_clip=0",
                                   "--schedule.kind=constant",
                                   "--schedule.warmup_steps=0",
                                   "--train.steps=2",
                                   "--train.eval_interval=1",
                                   "--train.threads=1",
                                   method.empty() ? "--out=grid" : "--out=asha"};
    if (method.empty()) words[7] = "--train.steps=1";
    words.insert(words.end(), method.begin(), method.end());
    const Finished r = lathe_in(f, words);
    INFO(r.out << r.err);
    REQUIRE(r.code == 0);
    CHECK_THAT(r.out, ContainsSubstring("optim.lr=1e30  diverged"));
    const std::string table = slurp(f / (method.empty() ? "grid" : "asha") / "table.txt");
    INFO(table);
    CHECK_THAT(table, ContainsSubstring("diverged"));
    CHECK_THAT(table, !ContainsSubstring("nan"));
  }
}

TEST_CASE("a sweep by a file, with successive halving; bad ones", "[runs_and_sweeps]") {
  const TempFolder f;
  make_tiny_run(f.path());
  write_file(f / "search.toml",
             "[sweep]\nconfig = \"tiny.toml\"\nmethod = \"asha\"\neta = 2\nsamples = 4\njobs = "
             "2\nout = \"s\"\n"
             "[optim]\nlr = \"1e-5..1e-1\"\n[train]\nsteps = 8\neval_interval = "
             "2\n[checkpoint]\ninterval = 2\n");
  const Finished r = lathe_in(f, {"sweep", "search.toml"});
  INFO(r.out << r.err);
  REQUIRE(r.code == 0);
  CHECK_THAT(
      r.out,
      ContainsSubstring(
          "4 to step 2, then 2 to step 4, then 1 to step 8: about 16 in total, instead of 32"));
  const Finished none = lathe_in(f, {"sweep", "search.toml", "--min-steps=2", "--samples=3",
                                     "--optim.lr=1e-5..1e-1", "--out=none"});
  CHECK(none.code == 2);
  CHECK_THAT(none.err, ContainsSubstring("none of 3 points would reach step 8"));
  CHECK(!fs::exists(f / "none"));
  int at_end = 0;
  for (const fs::path& run : find_runs(f / "s"))
    at_end += summarize(run).state == "finished" ? 1 : 0;
  CHECK(find_runs(f / "s").size() == 4);
  CHECK(at_end >= 1);
  CHECK(at_end < 4);
  for (const auto& [args, said] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"tiny.toml"}, "a key with several values"},
           {{"tiny.toml", "--optim.lr=1e-3,x"}, "must be a number"},
           {{"tiny.toml", "--train.out_dir=a,b"}, "is the sweep's own"},
           {{"tiny.toml", "--optim.lr=1e-3,2e-3", "--train.eval_interval=0"},
            "compares validation losses"},
           {{"tiny.toml", "--optim.lr=1e-4..1e-3"}, "as --samples"},
           {{"tiny.toml", "--optim.lr=1e-3,2e-3", "--eta=2"}, "no effect without --method=asha"}}) {
    std::vector<std::string> words{"sweep"};
    words.insert(words.end(), args.begin(), args.end());
    const Finished bad = lathe_in(f, words);
    INFO(bad.err);
    CHECK(bad.code == 2);
    CHECK_THAT(bad.err, ContainsSubstring(said));
  }
  CHECK(!fs::exists(f / "sweeps"));
}

TEST_CASE("completion and the man page name every command and key", "[runs_and_sweeps]") {
  const std::string man = man_page();
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(shell);
    for (const Command& v : commands()) {
      INFO(shell << " " << v.name);
      CHECK(script.find(v.name) != std::string::npos);
      for (const Flag& flag : v.flags) {
        const std::string fish = (flag.name.size() == 1 ? "-s " : "-l ") + flag.name + " ";
        CHECK(script.find(shell == "fish" ? fish : flag.typed()) != std::string::npos);
      }
    }
    for (const Field& field : all_fields()) {
      INFO(shell << " " << field.key);
      CHECK(script.find((shell == "fish" ? "-l " : "--") + field.key) != std::string::npos);
    }
  }
  const auto plain = [](std::string text) {
    for (size_t at = 0; (at = text.find("\\-", at)) != std::string::npos;) text.erase(at, 1);
    return text;
  };
  const std::string text = plain(man);
  for (const Command& v : commands()) CHECK_THAT(text, ContainsSubstring("\n.B lathe " + v.name));
  for (const Field& field : all_fields())
    CHECK_THAT(text, ContainsSubstring("\n.B --" + field.key + "="));
  CHECK_THAT(error_of([] { completion_script("tcsh"); }),
             ContainsSubstring("there are bash, zsh and fish"));

  // bash itself, where it is.
  const TempFolder f;
  write_file(f / "lathe.bash", completion_script("bash"));
  const auto complete = [&](const std::string& words, int at) {
    const std::string command = "cd " + f.path().string() +
                                " && bash -c 'source lathe.bash; compopt() { :; }; COMP_WORDS=(" +
                                words + "); COMP_CWORD=" + std::to_string(at) +
                                "; _lathe; echo \"${COMPREPLY[@]}\"' > out";
    if (std::system(command.c_str()) != 0) return std::string("failed");
    return slurp(f / "out");
  };
  CHECK(complete("lathe repl", 1) == "replay\n");
  CHECK(complete("lathe train --train.see", 2) == "--train.seed=\n");
  CHECK(complete("lathe runs --js", 2) == "--json=\n");
  CHECK(complete("lathe train --memory.recompute = bl", 4) == "blocks\n");
  CHECK(complete("lathe runs --train.see", 2) == "\n");
}

}  // namespace
