// Tests `lathe sweep`: its points, successive halving, and sweeps that are stopped or killed.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/commands/sweep_plan.h"
#include "train/store/checkpoint.h"
#include "train/store/curves.h"

namespace {

using namespace lathe;
using namespace lathe::test;

Axis axis(const std::string& key, const std::string& text) { return read_axis(key, text, "here"); }

TEST_CASE("a sweep's points are a grid or random draws, and no point occurs twice", "[sweeps]") {
  const auto grid =
      make_points({axis("optim.lr", "1e-3, 3e-3"), axis("train.seed", "1,2,3")}, 0, 0);
  REQUIRE(grid.size() == 6);
  CHECK(grid[0] == Overrides{{"optim.lr", "1e-3"}, {"train.seed", "1"}});
  CHECK(grid[4] == Overrides{{"optim.lr", "3e-3"}, {"train.seed", "2"}});

  // Random draws depend only on the seed.
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
  CHECK((low > 70 && low < 130));  // half of the draws on a logarithmic scale

  // A narrow range has as many different points as a wide range. All points are within the range.
  for (const char* range : {"0.999..0.9999", "0.9..0.99999", "1.0001e-3..1.0009e-3", "0..1e-9"}) {
    INFO(range);
    const Axis narrow = axis("optim.lr", range);
    const auto points = make_points({narrow}, 50, 1);
    CHECK(points.size() == 50);
    for (const Overrides& p : points) {
      const double x = std::stod(p[0].second);
      CHECK((x >= narrow.low && x <= narrow.high));
    }
  }

  // No point is drawn twice, even if that gives fewer points than requested.
  for (const int64_t samples : {3, 5}) {
    const auto points = make_points({axis("model.n_layer", "1..3")}, samples, 1);
    CHECK(std::set<Overrides>(points.begin(), points.end()).size() == 3);
    CHECK(points.size() == 3);
  }

  CHECK_THAT(error_of([] { axis("optim.lr", "1e-2..1e-4"); }),
             ContainsSubstring("1e-2..1e-4") && ContainsSubstring("above"));
  CHECK_THAT(error_of([] { axis("model.n_layer", "1..2.5"); }),
             ContainsSubstring("1..2.5") && ContainsSubstring("whole"));
  CHECK_THAT(error_of([] { axis("optim.lr", "1,,2"); }),
             ContainsSubstring("1,,2") && ContainsSubstring("empty"));
  CHECK_THAT(error_of([] { axis("optim.lr", "1,1"); }), ContainsSubstring("twice"));
  CHECK_THAT(error_of([] { make_points({axis("optim.lr", "0..1")}, 0, 0); }),
             ContainsSubstring("optim.lr") && ContainsSubstring("--samples"));

  CHECK(make_rungs(900, 100, 3, 50) == std::vector<int64_t>{100, 300, 900});
  // The steps of a rung are rounded to the nearest multiple of the evaluation interval: 333.3 to
  // 350, and 111.1 to 100.
  CHECK(make_rungs(1000, 100, 3, 50) == std::vector<int64_t>{100, 350, 1000});
  CHECK_THAT(error_of([] { make_rungs(900, 10, 3, 300); }),
             ContainsSubstring("every 300") && ContainsSubstring("--min-steps"));
}

TEST_CASE("lists are separated by semicolons, and equal numbers are refused", "[sweeps]") {
  CHECK(axis("data.mix", "code:0.5,text:0.5").values.size() == 1);
  CHECK(axis("adapters.layers", "*.q,*.k; *.v").values ==
        std::vector<std::string>{"*.q,*.k", "*.v"});
  CHECK_THAT(error_of([] { axis("adapters.layers", "*.q;"); }), ContainsSubstring("semicolons"));
  CHECK_THAT(error_of([] { axis("optim.lr", "1e-3,0.001"); }), ContainsSubstring("twice"));
}

TEST_CASE("successive halving promotes the best points, and resumes a job that was begun",
          "[sweeps]") {
  // The loss of point i is (i + 4) % 9, so point 5 is the best. With eta 3, at least three of the 9
  // points reach the second rung, and the best point reaches the last rung.
  std::vector<PointState> points(9);
  std::vector<bool> running(9, false);
  std::map<int, int> ran;  // the number of jobs by rung
  while (const auto job = next_job(points, running, 3, 3)) {
    const auto [i, rung] = *job;
    ++ran[rung];
    points[i].target = rung;
    CHECK(next_job(points, running, 3, 3) == job);  // after a kill here, the same job is next
    CHECK(points[i].losses.size() == static_cast<size_t>(rung));
    points[i].losses.push_back(static_cast<double>((i + 4) % 9));  // the best is point 5
    REQUIRE(ran[0] <= 9);
  }
  CHECK(ran[0] == 9);
  CHECK(ran[1] >= 3);
  CHECK(ran[1] <= 6);  // a point may be promoted before better points have run
  CHECK(ran[2] >= 1);
  CHECK(points[5].losses.size() == 3);
  CHECK(ranking(points)[0] == 5);
  // A diverged point is skipped, and a running point is not started twice.
  std::vector<PointState> two(2);
  two[0].target = 0;
  two[0].end = "diverged";
  CHECK(next_job(two, {false, false}, 1, 3) == std::pair<size_t, int>(1, 0));
  CHECK(next_job(two, {false, true}, 1, 3) == std::nullopt);
  const PointState kept = point_state(to_json(points[5]), "here");
  CHECK((kept.target == 2 && kept.losses == points[5].losses));

  // A loss that is NaN comes last, wherever it is in the list.
  const std::vector<double> losses{std::nan(""), 3, std::nan(""), 1, 2, std::nan("")};
  std::vector<PointState> some(losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    some[i].target = 0;
    some[i].losses = {losses[i]};
  }
  CHECK(ranking(some) == std::vector<size_t>{3, 4, 1, 0, 2, 5});
  CHECK(next_job(some, std::vector<bool>(6, false), 2, 6) == std::pair<size_t, int>(3, 1));
}

TEST_CASE("points of a sweep are named by their values", "[sweeps]") {
  CHECK(point_names({{{"optim.lr", "1e-3"}, {"train.seed", "1"}},
                     {{"optim.lr", "1e-3"}, {"train.seed", "2"}}}) ==
        std::vector<std::string>{"lr=1e-3,seed=1", "lr=1e-3,seed=2"});
  // Keys with the same last part keep their sections. Characters that paths can't have are
  // replaced.
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

TEST_CASE("results are averaged over seeds and folds", "[sweeps]") {
  // The best single run has the learning rate with the worse mean.
  std::vector<Overrides> points;
  std::vector<PointState> states;
  const auto add = [&](const char* lr, const char* seed, const char* fold, double loss) {
    points.push_back({{"data.fold", fold}, {"optim.lr", lr}, {"train.seed", seed}});
    states.push_back({.target = 0, .losses = {loss}, .end = ""});
  };
  add("1e-3", "1", "0", 1);
  add("1e-3", "2", "0", 7);
  add("1e-3", "1", "1", 4);
  add("1e-3", "2", "1", 4);
  add("3e-3", "1", "0", 3);
  add("3e-3", "2", "0", 3);
  add("3e-3", "1", "1", 3);
  add("3e-3", "2", "1", 3);
  auto groups = group_points(points, states, 1);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].keys == Overrides{{"optim.lr", "3e-3"}});
  CHECK((groups[0].mean == 3 && groups[0].deviation == 0 && groups[0].finished == 4));
  CHECK(groups[1].points == std::vector<size_t>{0, 1, 2, 3});
  CHECK((groups[1].mean == 4 && groups[1].deviation == Approx(std::sqrt(6.0))));

  // A group in which a run diverged comes last. Its mean is the mean of its other runs.
  states[5].end = "diverged";
  states[5].losses.clear();
  groups = group_points(points, states, 1);
  CHECK(groups[0].keys == Overrides{{"optim.lr", "1e-3"}});
  CHECK((groups[1].finished == 3 && groups[1].mean == 3));
  // The results of a single run have no standard deviation.
  groups = group_points({points[0]}, {states[0]}, 1);
  CHECK((groups[0].mean == 1 && std::isnan(groups[0].deviation)));
}

/// Checks the means of a sweep over two rates with two seeds each, and the contents of its report.
void check_means(const fs::path& folder, const Finished& sweep) {
  std::map<std::string, std::vector<double>> losses;  // by learning rate
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

  if (!fs::exists(folder / "report.html")) return;  // the chart library is missing
  const std::string page = slurp(folder / "report.html");
  CHECK_THAT(page, ContainsSubstring("\"sweep\":[{\"key\":\"optim.lr\",\"points\":[[\"1e-3\","));
  CHECK_THAT(page, ContainsSubstring("{\"key\":\"train.seed\",\"points\":[[\"1\","));
}

TEST_CASE("a random search trains each draw with every seed", "[sweeps]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const Finished r =
      lathe_in(f, {"sweep", "tiny.toml", "--method=random", "--samples=2", "--optim.lr=1e-4..1e-2",
                   "--train.seed=1,2,3", "--train.steps=2", "--train.eval_interval=2", "--out=s"});
  INFO(r.out << r.err);
  REQUIRE(r.code == 0);
  std::map<std::string, int> runs;  // by learning rate
  for (const fs::path& run : find_runs(f / "s")) {
    const std::string name = run.filename().string();
    ++runs[name.substr(0, name.find(','))];
  }
  REQUIRE(runs.size() == 2);
  for (const auto& [lr, n] : runs) CHECK(n == 3);
  CHECK_THAT(r.out, ContainsSubstring("3 runs)"));
}

TEST_CASE("a sweep that is killed loses and repeats no point", "[sweeps]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto sweep = [&](const std::string& out, const std::string& kill) {
    std::map<std::string, std::string> environment;
    if (!kill.empty()) environment["LATHE_TEST_KILL"] = kill;
    return run({.binary = "lathe_faults",
                .args = {"sweep", "tiny.toml", "--optim.lr=1e-3,3e-2", "--train.seed=1,2",
                         "--train.steps=8", "--train.eval_interval=4", "--checkpoint.interval=2",
                         "--out", out, "--jobs=2", "--train.threads=1"},
                .folder = f.path(),
                .environment = environment});
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
  std::map<std::string, std::string> done;  // the events.jsonl of points whose result was kept
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
        "");  // different points must differ

  // Another start of the finished sweep does nothing.
  CHECK(sweep("killed", "").code == 0);
  check_done();

  const Finished other =
      lathe_in(f, {"sweep", "tiny.toml", "--optim.lr=1e-3,3e-3", "--out", "killed"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, ContainsSubstring("killed") && ContainsSubstring("another sweep"));
}

TEST_CASE(
    "a sweep that is stopped while it starts its points ends with exit code 75, and resumes "
    "exactly",
    "[sweeps]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto sweep = [&](const std::string& out, std::map<std::string, std::string> environment) {
    return run({.binary = "lathe_faults",
                .args = {"sweep", "tiny.toml", "--train.seed=1,2", "--train.steps=1500",
                         "--train.eval_interval=1500", "--checkpoint.interval=1500", "--out", out,
                         "--jobs=2", "--train.threads=1"},
                .folder = f.path(),
                .environment = std::move(environment)});
  };
  REQUIRE(sweep("reference", {}).code == 0);

  // The stop is requested once the first or the second process exists. It reaches the processes
  // some milliseconds later, while they load the program, parse arguments, read their config, or
  // train.
  int stop = 0;
  for (const int after_ms : {0, 1, 5, 20, 50, 100, 150, 200, 300}) {
    const Finished stopped =
        sweep("stopped", {{"LATHE_TEST_STOP", str("sweep: point started ", 1 + stop++ % 2)},
                          {"LATHE_TEST_SLOW", str("sweep: point started ", after_ms)}});
    INFO(after_ms << " ms: " << stopped.out << stopped.err);
    CHECK(stopped.code == 75);
    CHECK_THAT(stopped.out, ContainsSubstring("stopped"));
  }
  REQUIRE(sweep("stopped", {}).code == 0);
  for (const std::string name : {"seed=1", "seed=2"})
    CHECK(difference(f / ("reference/points/" + name), f / ("stopped/points/" + name)) == "");
}

TEST_CASE("a sweep lists a point that ends without a finite loss as diverged", "[sweeps]") {
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

TEST_CASE("a sweep counts the steps of each of its points", "[sweeps]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Finished r =
      lathe_in(f, {"sweep", "tiny.toml", "--train.steps=4,2", "--train.eval_interval=2"});
  INFO(r.out << r.err);
  CHECK(r.code == 0);
  CHECK_THAT(r.out, ContainsSubstring("steps     6 in total"));
}

TEST_CASE("a sweep trains its points to the end even if the config has keys that stop a run early",
          "[sweeps]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const std::string tiny = slurp(f / "tiny.toml");
  std::string stops = tiny + "resume = \"never\"\n";
  stops.insert(stops.find("[train]\n") + 8, "pause_at = 2\nmax_time = 0.001\n");
  write_file(f / "stops.toml", stops);

  const auto sweep = [&](const std::string& config, const std::string& out) {
    const Finished r = lathe_in(
        f, {"sweep", config, "--method=asha", "--eta=2", "--samples=4", "--optim.lr=1e-4..1e-1",
            "--train.steps=8", "--train.eval_interval=2", "--jobs=2", "--out", out});
    INFO(r.out << r.err);
    REQUIRE(r.code == 0);
    return slurp(f / (out + "/table.txt"));
  };
  CHECK(sweep("stops.toml", "a") == sweep("tiny.toml", "b"));

  // In best.toml, train.pause_at is 0. The other keys that the sweep set for its runs have the
  // values of the config again.
  const RunConfig best = load_config((f / "a/best.toml").string(), {}).config;
  CHECK(best.train.max_time == Approx(0.001));
  CHECK(best.train.pause_at == 0);
  CHECK(best.train.threads == 1);  // the value in tiny.toml
  CHECK(best.checkpoint.resume == "never");
}

TEST_CASE(
    "a sweep uses the model of train.init_from, and reads its config with the command line's keys",
    "[sweeps]") {
  const TempFolder f;
  make_tiny_run(f.path());
  // model.n_kv_head is valid only for the model kind that the command line sets.
  std::string llama = slurp(f / "tiny.toml");
  llama.insert(llama.find("[model]\n") + 8, "n_kv_head = 1\n");
  write_file(f / "llama.toml", llama);
  const std::vector<std::string> keys{"--model.kind='llama'", "--train.steps=2",
                                      "--train.eval_interval=2"};
  const auto lathe = [&](std::vector<std::string> words, const std::string& environment = "") {
    words.insert(words.end(), keys.begin(), keys.end());
    return run({.binary = "lathe",
                .args = words,
                .folder = f.path(),
                .environment = {{"LATHE_OPTIM_WEIGHT_DECAY", environment}}});
  };
  REQUIRE(lathe({"train", "llama.toml", "--train.out_dir=source"}, "0.1").code == 0);

  // This config has data.window, a key of language models, but does not name the model's kind.
  write_file(f / "tune.toml",
             "[train]\ninit_from = \"source\"\nsteps = 2\neval_interval = 2\nthreads = 1\n"
             "[data]\ndir = \"data\"\nwindow = 16\n");
  Finished r = lathe_in(f, {"sweep", "tune.toml", "--optim.lr=1e-3,2e-3", "--out", "tuned"});
  INFO(r.out << r.err);
  CHECK(r.code == 0);

  const std::vector<std::string> words{"sweep", "llama.toml", "--optim.lr=1e-3,2e-3", "--out", "s"};
  r = lathe(words, "0.1");
  INFO(r.out << r.err);
  CHECK(r.code == 0);
  CHECK(lathe(words, "0.1").code == 0);

  // If a config key in the environment has another value, it defines another sweep.
  const Finished other = lathe(words, "0.2");
  CHECK(other.code == 2);
  CHECK_THAT(other.err, ContainsSubstring("another sweep") && ContainsSubstring("LATHE_"));
}

TEST_CASE("a file can define a sweep with successive halving, and wrong sweeps are refused",
          "[sweeps]") {
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
  CHECK_THAT(r.out, ContainsSubstring("4 to step 2") && ContainsSubstring("2 to step 4") &&
                        ContainsSubstring("1 to step 8") && ContainsSubstring("16 in total") &&
                        ContainsSubstring(" 32"));

  const Finished none = lathe_in(f, {"sweep", "search.toml", "--min-steps=2", "--samples=3",
                                     "--optim.lr=1e-5..1e-1", "--out=none"});
  CHECK(none.code == 2);
  CHECK_THAT(none.err, ContainsSubstring("of 3 points") && ContainsSubstring("step 8") &&
                           ContainsSubstring("--samples"));
  CHECK(!fs::exists(f / "none"));

  // At least one run reaches the last step, but not every run.
  int at_end = 0;
  for (const fs::path& run : find_runs(f / "s"))
    at_end += summarize(run).state == "finished" ? 1 : 0;
  CHECK(find_runs(f / "s").size() == 4);
  CHECK(at_end >= 1);
  CHECK(at_end < 4);

  for (const auto& [args, refusal] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"tiny.toml"}, "--optim.lr=1e-3,3e-3"},
           {{"tiny.toml", "--optim.lr=1e-3,x"}, "not \"x\""},
           {{"tiny.toml", "--train.out_dir=a,b"}, "train.out_dir is set"},
           {{"tiny.toml", "--optim.lr=1e-3,2e-3", "--train.eval_interval=0"},
            "train.eval_interval is 0"},
           {{"tiny.toml", "--optim.lr=1e-4..1e-3"}, "--samples"},
           {{"tiny.toml", "--optim.lr=1e-3,2e-3", "--method=asha", "--seed=2"}, "--seed"},
           {{"tiny.toml", "--optim.lr=1e-3,2e-3", "--eta=2"}, "--method=asha"}}) {
    std::vector<std::string> words{"sweep"};
    words.insert(words.end(), args.begin(), args.end());
    const Finished bad = lathe_in(f, words);
    INFO(bad.err);
    CHECK(bad.code == 2);
    CHECK_THAT(bad.err, ContainsSubstring(refusal));
  }

  // An error about an option of a sweep file names the line of the file.
  for (const std::string option :
       {"jobs = 0", "eta = \"many\"", "samples = 3", "out = \"tiny.toml\""}) {
    write_file(f / "wrong.toml", "[sweep]\nconfig = \"tiny.toml\"\nmethod = \"grid\"\n" + option +
                                     "\n[optim]\nlr = \"1e-3,2e-3\"\n");
    const Finished bad = lathe_in(f, {"sweep", "wrong.toml"});
    INFO(option << "\n" << bad.err);
    CHECK(bad.code == 2);
    CHECK_THAT(bad.err, ContainsSubstring("wrong.toml:4") &&
                            ContainsSubstring("sweep." + option.substr(0, option.find(' '))) &&
                            !ContainsSubstring("command line"));
  }

  const Finished long_rows = lathe_in(f, {"sweep", "tiny.toml", "--model.block_size=16,30000"});
  CHECK(long_rows.code == 3);
  CHECK_THAT(long_rows.err, ContainsSubstring("30000 tokens") && ContainsSubstring("data.window"));
  CHECK(!fs::exists(f / "sweeps"));
}

}  // namespace
