// Tests that the report of `lathe profile` agrees with the profiled steps.
#include "train/analysis/profile.h"

#include <sys/stat.h>

#include <cmath>
#include <map>
#include <set>

#include "core/io/json.h"
#include "core/parallel.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/analysis/finders.h"
#include "train/analysis/forecast.h"
#include "train/analysis/machine.h"
#include "train/step/stepper.h"

namespace {

using namespace lathe;
using namespace lathe::test;

LoadedConfig tiny_config(const TempFolder& f,
                         std::vector<std::pair<std::string, std::string>> keys = {}) {
  keys.insert(keys.end(), {{"data.dir", (f / "data").string()},
                           {"train.threads", "1"},
                           {"train.grad_accum", "2"},
                           {"train.device", "cpu"}});
  return load_config((f / "tiny.toml").string(), keys);
}

Profile profile_of(LoadedConfig loaded, int64_t first, int64_t count) {
  loaded.config.train.eval_interval = 0;
  const RunData data = RunData::open(loaded);
  Session s = Session::make(data);
  return profile_steps(s, *data.data, first, count);
}

TEST_CASE("spans name each op and its module, and have the step's FLOPs", "[profile]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const LoadedConfig loaded = tiny_config(f);
  const Profile p = profile_of(loaded, 1, 3);
  REQUIRE(p.step_seconds.size() == 3);

  // These are sums over the spans of three steps, each with two micro-batches.
  double matmul = 0, forward_begin = -1, end = 0, sum = 0, steps = 0, idle = 0, of = 0;
  int loops = 0;
  int64_t kept = 0, left = 0, data = 0, optimizer = 0;
  std::set<std::string> places;
  for (const Span& s : p.spans) {
    matmul += s.flops.matmul;
    kept += s.kept;
    left += s.phase == Span::Phase::forward ? s.kept : 0;
    sum += s.seconds;
    data += s.phase == Span::Phase::data;
    optimizer += s.phase == Span::Phase::optimizer;
    CHECK(s.begin >= end - 1e-9);  // spans do not overlap
    loops += s.idle >= 0;
    if (s.idle >= 0) {
      idle += s.idle;
      of += s.seconds;
    }
    end = s.begin + s.seconds;
    if (s.phase == Span::Phase::forward || s.phase == Span::Phase::backward)
      places.insert((s.phase == Span::Phase::forward ? "f " : "b ") + s.op + " " + s.module);
    if (forward_begin < 0 && s.phase == Span::Phase::forward) forward_begin = s.begin;
  }
  for (const double t : p.step_seconds) steps += t;

  CHECK(loops > 100);
  CHECK(idle < 0.25 * of);  // one thread never waits, so this is the overhead of tiny loops
  CHECK(data == 3 * 2);
  CHECK(optimizer == 3);
  CHECK(sum <= steps);
  CHECK(matmul == Approx(3 * 2 * dry_step(loaded).micro_batch.matmul()));

  // Activations of the forward pass are freed by the end of the step, unless the memory of an
  // activation has become a parameter's gradient.
  CHECK(left > 50000);
  CHECK(std::abs(kept) < left / 20);
  for (const char* place : {"f attention blocks.0.attn", "b attention blocks.1.attn",
                            "f layer_norm norm", "f embedding tokens", "b linear_cross_entropy "})
    CHECK(places.contains(place));
}

TEST_CASE("recomputed ops are counted separately", "[profile]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const auto count = [&](const char* policy) {
    const Profile p = profile_of(tiny_config(f, {{"memory.recompute", policy}}), 0, 1);
    return std::count_if(p.spans.begin(), p.spans.end(),
                         [](const Span& s) { return s.phase == Span::Phase::recompute; });
  };
  CHECK(count("none") == 0);
  CHECK(count("blocks") > 10);
}

TEST_CASE("a leak is reported, and constant memory is not reported as a leak", "[profile]") {
  Profile p;
  p.spans.push_back(
      {.op = "linear", .module = "head", .seconds = 1e-3, .flops = {.matmul = 1e6}, .bytes = 1000});
  p.step_seconds = {1e-3, 1e-3, 1e-3, 1e-3};

  p.memory_after_step = {1000, 2000, 3000, 4000};
  CHECK_THAT(profile_text(p, {1e9, 1e9}, "tokens", 10),
             ContainsSubstring("LEAK") && ContainsSubstring("1.0 kB"));
  p.memory_after_step = {3000, 3000, 3000, 3000};
  CHECK(profile_text(p, {1e9, 1e9}, "tokens", 10).find("LEAK") == std::string::npos);

  // The advice on data.workers depends on the time that steps wait for data.
  CHECK_THAT(profile_text(p, {1e9, 1e9}, "tokens", 10), ContainsSubstring("data.workers = 0"));
  Profile waits = p;
  waits.spans.push_back({.phase = Span::Phase::data, .op = "data", .seconds = 1e-3});
  CHECK_THAT(profile_text(waits, {1e9, 1e9}, "tokens", 10), ContainsSubstring("more data.workers"));
  waits.disk_reads = 5;
  CHECK_THAT(profile_text(waits, {1e9, 1e9}, "tokens", 10), ContainsSubstring("data.prefetch"));

  // The op takes a millisecond. At 1e9 FLOP/s, its 1e6 FLOPs need all of this time. If the ceilings
  // are a thousand times higher, the millisecond is overhead.
  CHECK_THAT(profile_text(p, {1e9, 1e12}, "tokens", 10), ContainsSubstring("(compute)"));
  CHECK_THAT(profile_text(p, {1e12, 1e12}, "tokens", 10), ContainsSubstring("(overhead)"));
  CHECK_THAT(profile_text(p, {1e12, 1e6}, "tokens", 10), ContainsSubstring("(memory)"));
}

TEST_CASE("a profile shows a thread that waits for another at the end of a loop", "[profile]") {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  ThreadLog log;
  ThreadLog::active() = &log;
  const auto busy = [](double seconds) {
    for (const auto begin = Clock::now(); seconds_since(begin) < seconds;) {
    }
  };
  parallel_for(0, 2, 1, [&](int64_t begin, int64_t) {
    busy(begin == 0 ? 0.05 : 0);
    parallel_for(0, 2, 1, [&](int64_t, int64_t) {});  // nested: it runs on the same thread
  });
  ThreadLog::active() = nullptr;
  parallel_for(0, 2, 1, [&](int64_t, int64_t) {});
  at::set_num_threads(threads);
  const auto [works, loops] = log.take();
  REQUIRE(loops.size() == 1);
  REQUIRE(works.size() == 2);
  for (const ThreadLog::Work& w : works) {
    CHECK(w.what == loop_work);
    CHECK(w.begin >= loops[0].begin);
    CHECK(w.end <= loops[0].end);
    if (w.thread == 0) CHECK(w.end - w.begin >= std::chrono::milliseconds(50));
  }
  CHECK(works[0].thread + works[1].thread == 1);
  CHECK(log.take().first.empty());

  Profile p;
  p.threads = 2;
  p.spans.push_back({.op = "known", .seconds = 1e-3, .idle = 0.5e-3});
  p.spans.push_back({.op = "of_aten", .seconds = 3e-3});
  p.step_seconds = {4e-3};
  p.memory_after_step = {0};
  const std::string text = profile_text(p, {1e9, 1e9}, "tokens", 10);
  CHECK_THAT(text, ContainsSubstring("idle 25%") && ContainsSubstring("(25% of the step)"));
  CHECK_THAT(text, Catch::Matchers::Matches("(.|\n)*known .* 25%\n(.|\n)*"));
  CHECK_THAT(text, Catch::Matchers::Matches("(.|\n)*of_aten .*\\.00 *\n(.|\n)*"));
}

TEST_CASE("profile replaces a trace that it wrote, and other files only with --force",
          "[profile]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const auto profile = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"profile", "tiny.toml", "--steps", "0:1"});
    return lathe_in(f, std::move(args));
  };
  REQUIRE(mkfifo((f / "pipe").c_str(), 0600) == 0);
  for (const std::string flag : {"--trace", "--kineto"}) {
    INFO(flag);
    write_file(f / "t.json", "mine");
    const Finished refused = profile({flag, "t.json"});
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, ContainsSubstring("t.json") && ContainsSubstring("--force true"));
    CHECK(refused.out.empty());
    CHECK(slurp(f / "t.json") == "mine");

    CHECK(profile({flag, "t.json", "--force"}).code == 0);
    const std::string first = slurp(f / "t.json");
    CHECK(first.size() > 1000);
    CHECK(profile({flag, "t.json"}).code == 0);
    CHECK(slurp(f / "t.json") != first);

    // A pipe or a device is refused, because a rename would replace it with a file.
    const Finished on_pipe = profile({flag, "pipe", "--force", "true"});
    CHECK(on_pipe.code == 2);
    CHECK_THAT(on_pipe.err, ContainsSubstring("pipe") && ContainsSubstring("regular file"));
    CHECK(fs::is_fifo(f / "pipe"));
    const Finished on_folder = profile({flag, "data"});
    CHECK(on_folder.code == 2);
    CHECK_THAT(on_folder.err, ContainsSubstring("data") && ContainsSubstring("regular file"));
  }
}

TEST_CASE("profile takes a config or a run, and writes a trace", "[profile]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const Finished of_config =
      lathe_in(f, {"profile", "tiny.toml", "--steps", "2:4", "--trace", "trace.json", "--kineto",
                   "kineto.json", "--train.threads=2", "--data.workers=1"});
  INFO(of_config.err);
  REQUIRE(of_config.code == 0);
  for (const char* word : {"A step is limited most by", "The three largest costs",
                           "Memory is highest in", "blocks.*.mlp"})
    CHECK_THAT(of_config.out, ContainsSubstring(word));

  // The spans are in order and don't overlap, and each thread has a lane.
  const Json trace =
      parse_json(read_file(f / "trace.json", Exit::io), "trace.json", Exit::internal);
  double end = 0;
  int spans = 0;
  std::map<int, std::string> lanes;
  std::map<std::string, int> parts;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name")
      lanes[event["tid"].get<int>()] = event["args"]["name"].get<std::string>();
    if (event["ph"] != "X") continue;
    const std::string& lane = lanes[event["tid"].get<int>()];
    if (event["cat"] == "threads") {
      CHECK(lane.starts_with(event["name"].get<std::string>()));
      ++parts[lane];
      continue;
    }
    CHECK(lane == "steps");
    ++spans;
    CHECK(event["ts"].get<double>() >= end - 0.01);
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
  CHECK(spans > 50);
  CHECK(parts["loop 0"] > 50);
  CHECK(parts["loop 1"] > 5);
  CHECK(parts["data worker 0"] > 0);

  // LibTorch's profiler recorded the next steps. Its trace has Lathe's spans, by name, around
  // ATen's ops.
  const Json kineto =
      parse_json(read_file(f / "kineto.json", Exit::io), "kineto.json", Exit::internal);
  std::map<std::string, std::pair<double, double>> seen;
  for (const Json& event : kineto["traceEvents"]) {
    if (event.value("ph", "") == "X")
      seen.try_emplace(event["name"].get<std::string>(), event["ts"].get<double>(),
                       event["ts"].get<double>() + event["dur"].get<double>());
  }
  CHECK_FALSE(seen.contains("step 3"));
  for (const auto& [outer, inner] : {std::pair{"step 4", "forward"},
                                     {"forward", "blocks.0.attn.qkv (Linear)"},
                                     {"blocks.0.attn.qkv (Linear)", "linear"},
                                     {"backward", "attention backward"},
                                     {"step 4", "data"},
                                     {"step 4", "optimizer"},
                                     {"linear", "aten::empty"}}) {
    INFO(outer << " around " << inner);
    REQUIRE(seen.contains(outer));
    REQUIRE(seen.contains(inner));
    if (std::string(inner) == "aten::empty") continue;  // other code calls aten::empty before
    CHECK(seen[outer].first <= seen[inner].first);
    CHECK(seen[outer].second >= seen[inner].second);
  }
  CHECK(seen.contains("step 5"));

  const Finished no_gpu = lathe_in(f, {"profile", "tiny.toml", "--nvtx=true"});
  CHECK(no_gpu.code == 2);
  CHECK_THAT(no_gpu.err, ContainsSubstring("--nvtx") && ContainsSubstring("CPU"));
  CHECK(lathe_in(f, {"profile", "tiny.toml", "--steps=0:1", "--kineto=none/kineto.json"}).code ==
        static_cast<int>(Exit::io));
  CHECK_FALSE(fs::exists(f / "runs"));

  // Profiling a run writes the memory of its steps to its folder, and does not change its metrics.
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.steps=2", "--log.level=error"}).code == 0);
  const std::string before = read_file(f / "runs/tiny/metrics.jsonl", Exit::io);
  CHECK(lathe_in(f, {"profile", "runs/tiny", "--steps=1:2"}).code == 0);
  const Json memory =
      parse_json(read_file(f / "runs/tiny/profile.json", Exit::io), "profile.json", Exit::internal);
  int64_t most = 0;
  for (const Json& point : memory["timeline"]) most = std::max(most, point[1].get<int64_t>());
  CHECK(most == memory["bytes"].get<int64_t>());
  CHECK_THAT(of_config.out,
             ContainsSubstring("Memory is highest in " + memory["at"].get<std::string>()));
  CHECK_THAT(of_config.out, ContainsSubstring(memory["kept"][0][0].get<std::string>()));
  CHECK(read_file(f / "runs/tiny/metrics.jsonl", Exit::io) == before);

  // `lathe profile` replaces a file that it wrote, but not another file of the same name.
  CHECK(lathe_in(f, {"profile", "runs/tiny", "--steps=1:2"}).code == 0);
  write_file(f / "runs/tiny/profile.json", "{\"mine\": 1}");
  const Finished refused = lathe_in(f, {"profile", "runs/tiny", "--steps=1:2"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, ContainsSubstring("profile.json"));
  CHECK(read_file(f / "runs/tiny/profile.json", Exit::io) == "{\"mine\": 1}");

  // A run can also be profiled after it was moved and the run in its train.init_from is gone, or if
  // only one of its checkpoints is left.
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=runs/tuned", "--train.steps=2",
                       "--train.init_from=runs/tiny"})
              .code == 0);
  fs::rename(f / "runs/tuned", f / "moved");
  fs::rename(f / "runs/tiny", f / "gone");
  fs::create_directories(f / "merged/checkpoints");
  fs::copy(find_checkpoint(f / "moved"), f / "merged/checkpoints/step-00000002",
           fs::copy_options::recursive);
  for (const char* path : {"moved", "merged"}) {
    const Finished r = lathe_in(f, {"profile", path, "--steps=1:2"});
    INFO(path << r.out << r.err);
    CHECK(r.code == 0);
  }

  const Finished reversed = lathe_in(f, {"profile", "tiny.toml", "--steps=4:2"});
  CHECK(reversed.code == 2);
  CHECK_THAT(reversed.err, ContainsSubstring("--steps") && ContainsSubstring("not 4:2"));
}

TEST_CASE("a range test finds where the loss falls and where it rises", "[profile]") {
  RangeTest test;
  for (int i = 0; i < 60; ++i) {
    const double x =
        -6 + 0.1 * i;  // log10(lr); the loss falls fastest at 1e-3, and rises above 10^-1.5
    test.lr.push_back(std::pow(10, x));
    test.loss.push_back(4 - 2 / (1 + std::exp(-4 * (x + 3))) + (x > -1.5 ? 8 * (x + 1.5) : 0));
  }
  read_range(test);
  CHECK(std::log10(test.steepest) == Approx(-3).epsilon(0.05));
  CHECK(test.diverged > 0.03);
  CHECK(std::log10(test.lowest) == Approx(-1.5).epsilon(0.1));

  // A rise of the loss before its lowest value is not a divergence.
  RangeTest hill{.lr = {1, 2, 3, 4, 5, 6, 7, 8}, .loss = {1, 1.2, 1, 0.8, 0.6, 0.5, 0.45, 0.4}};
  read_range(hill);
  CHECK(hill.diverged == 0);
  hill.loss.back() = 1.3;
  read_range(hill);
  CHECK(hill.diverged == 8);

  // A curve that falls and rises again, but not above its first value, has a lowest point and no
  // divergence.
  RangeTest bowl, falling;
  for (int i = 0; i < 60; ++i) {
    bowl.lr.push_back(std::pow(10, -6 + 0.1 * i));
    bowl.loss.push_back(2 + 1e-3 * std::pow(i - 40, 2));
    falling.lr.push_back(bowl.lr.back());
    falling.loss.push_back(4 - 0.03 * i);
  }
  read_range(bowl);
  read_range(falling);
  CHECK(bowl.diverged == 0);
  CHECK(bowl.lowest == bowl.lr[40]);
  CHECK(falling.lowest == 0);  // this curve only falls

  // This curve is noisy and rises from its beginning, so it has no falling part.
  RangeTest rising;
  for (int i = 0; i < 60; ++i) {
    rising.lr.push_back(falling.lr[static_cast<size_t>(i)]);
    rising.loss.push_back(2 + 0.1 * i + (i % 8 < 4 ? 0.4 : 0));
  }
  read_range(rising);
  CHECK(rising.steepest == 0);
  CHECK(rising.lowest > 0);

  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const Finished r =
      lathe_in(f, {"find", "lr", "tiny.toml", "--from=1e-4", "--to=1000", "--steps=80"});
  INFO(r.err);
  REQUIRE(r.code == 0);
  const Json last = parse_json(r.out.substr(r.out.rfind("{")), "find", Exit::internal);
  CHECK(last["lr"].get<double>() > 1e-4);
  CHECK(last["lr"].get<double>() < 10);
  CHECK(last["diverges_at"].is_number());
  CHECK(last["lowest_at"].get<double>() < last["diverges_at"].get<double>());
  CHECK_THAT(r.out, ContainsSubstring("it rises") && ContainsSubstring("diverges at"));

  const Finished reversed = lathe_in(f, {"find", "lr", "tiny.toml", "--from=1", "--to=0.1"});
  CHECK(reversed.code == 2);
  CHECK_THAT(reversed.err, ContainsSubstring("--to") && ContainsSubstring("--from"));
}

TEST_CASE("the gradient noise scale is correct for gradients with known noise",
          "[profile][process_memory]") {
  // With |G|^2 = 4 and tr(S) = 80, the squared norm is 4 + 16 for batches of 5, and 4 + 4 for
  // batches of 20.
  const NoiseScale n = noise_scale(20, 8, 5, 20);
  CHECK(n.gradient == Approx(4));
  CHECK(n.noise == Approx(80));
  CHECK(n.batch() == Approx(20));
  CHECK(std::isnan(noise_scale(20, 5, 5, 20).batch()));  // only noise
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const Finished r = lathe_in_new_process(
      f, {"find", "batch", "tiny.toml", "--memory=300MB", "--rounds=2", "--train.device=cpu"});
  INFO(r.err);
  REQUIRE(r.code == 0);
  const Json last = parse_json(r.out.substr(r.out.rfind("{")), "find", Exit::internal);
  CHECK(last["batch_size"].get<int64_t>() > 100);
  CHECK(last["measured_bytes"].get<double>() ==
        Approx(last["predicted_bytes"].get<double>()).epsilon(0.1));
  CHECK(last["measured_bytes"].get<double>() < 330e6);
}

TEST_CASE("a measurement beside other work gets warnings, and one on an idle machine does not",
          "[profile]") {
  const MachineSample begin{.seconds = 100,
                            .own_cpu = 5,
                            .all_cpu = 1000,
                            .steal = 10,
                            .mhz = 2500,
                            .throttled = 3,
                            .load = 0};
  MachineSample end{.seconds = 110,
                    .own_cpu = 25,
                    .all_cpu = 1020.2,
                    .steal = 10,
                    .mhz = 2490,
                    .throttled = 3,
                    .load = 2};
  CHECK(measurement_warnings(begin, end, 2, "performance").empty());

  end.all_cpu = 1025;
  end.steal = 11;
  end.mhz = 1800;
  end.throttled = 4;

  const auto why = measurement_warnings(begin, end, 2, "powersave");
  REQUIRE(why.size() == 5);
  CHECK_THAT(why[0], ContainsSubstring("other processes") && ContainsSubstring(" 25%"));
  CHECK_THAT(why[1], ContainsSubstring(" 5% of the cores"));
  CHECK_THAT(why[2], ContainsSubstring("2500") && ContainsSubstring("1800 MHz"));
}

}  // namespace
