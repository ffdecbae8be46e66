// Tests of memory.offload: the results of a run stay bitwise the same, and the run takes less
// memory. Also tests resumed runs, killed runs, and disks that are full or fail.
#include <string>
#include <vector>

#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/train/analysis/resident.h"
#include "tests/train/loop/trials.h"
#include "train/analysis/fit.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using lathe::test::Finished;
using lathe::test::Kind;
using lathe::test::results_of;
using lathe::test::TempFolder;
using lathe::test::train_on;
using lathe::test::with_keys;
using Words = std::vector<std::string>;

const Kind offload_gpt{"gpt", "text",
                       "n_layer = 3\nn_head = 2\nn_embd = 64\nblock_size = 12\ndropout = 0.1\n"};
// The matrices of this model have more elements than one partial sum of the gradient norm covers,
// so several partial sums cover each matrix.
const Kind cut_gpt{"gpt", "text",
                   "n_layer = 2\nn_head = 2\nn_embd = 128\nblock_size = 12\ndropout = 0.1\n"};
const Words offloading{"--memory.offload=optimizer"};
const Words offloading_all{"--memory.offload=optimizer+activations",
                           "--memory.offload_window_mb=0"};

/// Trains runs in one folder, which has data for each kind of model.
class OffloadRuns {
 public:
  OffloadRuns() { lathe::test::make_data(folder_); }
  const TempFolder& folder() const { return folder_; }

  void train(const std::string& name, const Kind& kind, const Words& more, int code = 0,
             int ranks = 1) {
    lathe::test::write_config(folder_, kind);
    const Words keys{"--train.grad_accum=2",     "--train.steps=6",
                     "--train.batch_size=4",     "--train.eval_interval=3",
                     "--train.eval_batches=2",   "--checkpoint.interval=6",
                     "--schedule.kind=constant", "--train.log_interval=1"};
    done_ = train_on(folder_, ranks, "kind.toml", name, with_keys(keys, more));
    INFO(done_.out << done_.err);
    REQUIRE(done_.code == code);
  }
  std::string results(const std::string& name) const {
    return results_of(folder_ / ("runs/" + name), "step-00000006");
  }
  const Finished& done() const { return done_; }

 private:
  TempFolder folder_;
  Finished done_;
};

struct OffloadCell {
  const Kind& kind;
  Words keys;
};

/// Indices of test::kinds: 0 is an MLP with batch norm, 1 an MLP on numeric data, 2 a convnet, 3 a
/// Llama, 4 an LSTM.
std::vector<OffloadCell> offload_cells() {
  const auto& kinds = lathe::test::kinds;
  const Words during{"--memory.update_in_backward=true", "--train.grad_accum=1"};
  return {
      {offload_gpt, {"--optim.grad_clip=0.5"}},
      {cut_gpt, with_keys(during, {"--optim.grad_clip=0.5", "--optim.ema_decay=0.9"})},
      {cut_gpt,
       {"--amp.dtype=fp16", "--amp.scaler=dynamic", "--amp.loss_scale=16777216",
        "--optim.kind=adamw8bit"}},
      {offload_gpt,
       with_keys(during, {"--amp.dtype=bf16", "--amp.master=false", "--optim.grad_clip=0"})},
      {kinds[0], {"--optim.kind=lamb", "--optim.grad_clip=0.1", "--checkpoint.dtype=bf16"}},
      {kinds[1], {"--optim.kind=nadam", "--optim.grad_clip=0.1", "--optim.grad_clip_by=parameter"}},
      {kinds[2], {"--optim.kind=adagrad", "--optim.initial_accumulator=0.5", "--amp.dtype=bf16"}},
      {kinds[3],
       {"--optim.kind=muon", "--amp.working_copies=true", "--amp.dtype=bf16",
        "--memory.recompute=blocks"}},
      {kinds[4], {"--optim.kind=adafactor", "--train.spike_sigma=0.5"}},
  };
}

TEST_CASE("with optimizer state on the disk, a run has bitwise the same results",
          "[offload_runs]") {
  OffloadRuns runs;
  int n = 0;
  for (const OffloadCell& c : offload_cells()) {
    std::string keys;
    for (const std::string& key : c.keys) keys += key + " ";
    INFO(c.kind.name << " " << keys);
    const std::string name = std::to_string(n++);
    runs.train("memory-" + name, c.kind, c.keys);
    CHECK(runs.done().out.find("\noffload ") == std::string::npos);
    runs.train("disk-" + name, c.kind, with_keys(c.keys, offloading));
    CHECK(runs.done().out.find("\noffload ") != std::string::npos);
    CHECK((runs.results("disk-" + name) == runs.results("memory-" + name)));
    runs.train("all-" + name, c.kind, with_keys(c.keys, offloading_all));
    CHECK((runs.results("all-" + name) == runs.results("memory-" + name)));
  }
  // The folders of runs with and without offloading have the same files.
  CHECK(lathe::test::names(runs.folder() / "runs/disk-0") ==
        lathe::test::names(runs.folder() / "runs/memory-0"));

  // The comparison must notice another clipping norm.
  runs.train("clipped", offload_gpt, {"--optim.grad_clip=0.01"});
  CHECK((runs.results("clipped") != runs.results("disk-0")));
}

TEST_CASE("with activations on the disk, a run of each kind of model has bitwise the same results",
          "[offload_runs]") {
  OffloadRuns runs;
  // Activations below 64 KiB stay in memory. With this batch size, some activations are larger.
  const Words large{"--train.batch_size=96", "--train.grad_accum=1", "--train.steps=3",
                    "--checkpoint.interval=3"};
  const Words disk{"--memory.offload=activations", "--memory.offload_window_mb=0"};
  std::vector<OffloadCell> cells{{cut_gpt, {"--amp.dtype=bf16"}},
                                 {cut_gpt, {"--memory.recompute=blocks"}},
                                 {cut_gpt, {"--memory.recompute=selective"}},
                                 {cut_gpt, {"--memory.recompute=sqrt"}},
                                 {cut_gpt, {"--memory.recompute=blocks.1-1"}},
                                 {cut_gpt, {"--memory.update_in_backward=true"}},
                                 {cut_gpt, {"--amp.dtype=fp8", "--amp.fp8_edge_blocks=0"}}};
  for (const Kind& kind : lathe::test::kinds) cells.push_back({kind, {}});

  int n = 0, written = 0;
  for (const OffloadCell& c : cells) {
    INFO(c.kind.name << " " << (c.keys.empty() ? "" : c.keys[0]));
    const std::string name = std::to_string(n++);
    const auto results = [&](const std::string& run) {
      return results_of(runs.folder() / ("runs/" + run), "step-00000003");
    };

    runs.train("memory-" + name, c.kind, with_keys(large, c.keys));
    runs.train("disk-" + name, c.kind, with_keys(large, with_keys(c.keys, disk)));
    written += runs.done().out.find("\noffload   activations: ") != std::string::npos ? 1 : 0;
    CHECK((results("disk-" + name) == results("memory-" + name)));
  }

  // The smallest models have no activation of 64 KiB, so they write nothing to the disk.
  CHECK(written >= 9);
}

TEST_CASE("with parameters on the disk, a run has bitwise the same results", "[offload_runs]") {
  OffloadRuns runs;
  const Words base{"--memory.recompute=blocks", "--memory.update_in_backward=true",
                   "--train.grad_accum=1", "--optim.grad_clip=0.5"};
  const std::vector<OffloadCell> cells{
      {cut_gpt, {}},
      {cut_gpt, {"--amp.dtype=bf16", "--memory.recompute=selective"}},
      {cut_gpt, {"--amp.dtype=bf16", "--amp.master=false", "--optim.grad_clip=0"}},
      {cut_gpt, {"--amp.dtype=bf16", "--checkpoint.dtype=bf16", "--optim.ema_decay=0.9"}},
      {lathe::test::kinds[3], {"--model.n_embd=128", "--optim.kind=muon"}},
      {lathe::test::kinds[2], {"--model.n_channel=32", "--optim.kind=sgd"}}};

  int n = 0;
  for (const OffloadCell& c : cells) {
    INFO(c.kind.name << " " << (c.keys.empty() ? "" : c.keys[0]));
    const std::string name = std::to_string(n++);
    const Words keys = with_keys(base, c.keys);
    runs.train("memory-" + name, c.kind, keys);

    // The last cell uses optim.kind=sgd, which keeps no state that could be offloaded.
    const bool keeps_state = name != "5";
    for (const std::string offload : {"parameters", "optimizer+activations+parameters"}) {
      if (!keeps_state && offload != "parameters") continue;
      runs.train(offload + name, c.kind, with_keys(keys, {"--memory.offload=" + offload}));
      CHECK((runs.results(offload + name) == runs.results("memory-" + name)));
    }
  }

  // A run may be resumed with its parameters on the disk or in memory, wherever they were before.
  const Words disk = with_keys(base, {"--memory.offload=parameters"});
  runs.train("parts", cut_gpt, with_keys(disk, {"--train.pause_at=2"}), 75);
  runs.train("parts", cut_gpt, with_keys(base, {"--train.pause_at=4"}), 75);
  runs.train("parts", cut_gpt, disk);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const fs::path saved = fs::path("checkpoints/step-00000006") / file;
    CHECK((lathe::test::slurp(runs.folder() / "runs/parts" / saved) ==
           lathe::test::slurp(runs.folder() / "runs/memory-0" / saved)));
  }
}

TEST_CASE("with optimizer state on the disk, one and two processes have bitwise the same results",
          "[offload_runs]") {
  OffloadRuns runs;
  const Words keys{"--train.grad_accum=4", "--optim.grad_clip=0.5", "--dist.timeout=60"};
  runs.train("alone", cut_gpt, keys);
  const Words shared = with_keys(keys, offloading);
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    INFO(shard);
    Words all = with_keys(shared, {std::string("--dist.shard=") + shard});
    if (std::string(shard) == "parameters") all.push_back("--memory.recompute=blocks");
    runs.train(shard, cut_gpt, all, 0, 2);
    CHECK((runs.results(shard) == runs.results("alone")));
  }
}

TEST_CASE("a run resumes exactly with its optimizer state on the disk or in memory",
          "[offload_runs]") {
  OffloadRuns runs;
  runs.train("whole", cut_gpt, {});
  runs.train("parts", cut_gpt, with_keys(offloading, {"--train.pause_at=2"}), 75);
  runs.train("parts", cut_gpt, with_keys(offloading, {"--train.pause_at=3"}), 75);
  runs.train("parts", cut_gpt, {"--train.pause_at=4"}, 75);
  runs.train("parts", cut_gpt, offloading);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const fs::path saved = fs::path("checkpoints/step-00000006") / file;
    CHECK((lathe::test::slurp(runs.folder() / "runs/parts" / saved) ==
           lathe::test::slurp(runs.folder() / "runs/whole" / saved)));
  }
}

TEST_CASE("keys that contradict memory.offload are refused, and the message names them",
          "[offload_runs]") {
  OffloadRuns runs;
  // Each case has the keys, and the texts that the message must contain in addition to
  // memory.offload.
  const std::vector<std::pair<Words, Words>> cases{
      {{"--memory.offload=optimizer", "--checkpoint.async_save=true"}, {"checkpoint.async_save"}},
      {{"--memory.offload=optimizer", "--optim.kind=sgd"}, {"optim.kind = \"sgd\""}},
      {{"--memory.offload=optimizer", "--memory.offload_dir=nowhere"},
       {"memory.offload_dir", "nowhere"}},
      {{"--memory.offload_dir=text"}, {"memory.offload_dir", "memory.offload = \"none\""}},
      {{"--memory.offload=optimizer", "--memory.offload_window_mb=1"},
       {"memory.offload_window_mb"}},
      {{"--memory.offload=activations", "--memory.saved=bf16"}, {"memory.saved"}},
      {{"--memory.offload=parameters", "--memory.update_in_backward=true", "--train.grad_accum=1"},
       {"memory.recompute", "memory.update_in_backward"}},
      {{"--memory.offload=parameters", "--memory.recompute=blocks"},
       {"memory.recompute", "memory.update_in_backward"}},
      {{"--memory.offload=optimizer+optimizer"}, {"NAME+NAME"}},
      {{"--memory.offload=optimizer+"}, {"NAME+NAME"}},
  };
  for (const auto& [keys, facts] : cases) {
    INFO(facts[0]);
    runs.train("refused", offload_gpt, keys, 2);
    CHECK_THAT(runs.done().err, ContainsSubstring("memory.offload"));
    for (const std::string& fact : facts) CHECK_THAT(runs.done().err, ContainsSubstring(fact));
    CHECK(!fs::exists(runs.folder() / "runs"));
  }

  // An existing folder is used for the scratch file, and is empty after the run.
  fs::create_directory(runs.folder() / "scratch");
  runs.train("other", offload_gpt, with_keys(offloading, {"--memory.offload_dir=scratch"}));
  CHECK(lathe::test::names(runs.folder() / "scratch").empty());
}

TEST_CASE("a full or failing disk ends a run with exit code 6, and the run keeps its checkpoints",
          "[offload_runs]") {
  const TempFolder f(lathe::test::fast_folder());
  lathe::test::make_tiny_run(f.path());
  const auto train = [&](const std::string& run, const std::string& fault) {
    std::map<std::string, std::string> faults;
    if (!fault.empty()) faults = {{"LATHE_TEST_FAIL", fault}};
    return lathe::test::run(
        {.binary = "lathe_faults",
         .args = {"train", "tiny.toml", "--train.steps=12", "--checkpoint.interval=4",
                  "--train.out_dir=" + run, "--memory.offload=optimizer"},
         .folder = f.path(),
         .environment = faults});
  };
  REQUIRE(train("reference", "").code == 0);

  const std::vector<std::pair<std::string, std::string>> faults{
      {"pwrite ENOSPC 60", "No space left on device"},
      {"pwrite EIO 90", "Input/output error"},
      {"pread EIO 150", "Input/output error"},
      {"fallocate ENOSPC 1", "reserve"},
  };
  for (const auto& [fault, says] : faults) {
    INFO(fault);
    const Finished failed = train("run", fault);
    INFO(failed.out << failed.err);
    CHECK(failed.code == 6);
    CHECK_THAT(failed.err, ContainsSubstring(says) && ContainsSubstring("scratch file"));

    // The test's folder may be on a file system in memory, which causes a warning.
    const size_t error = failed.err.find("error: ");
    REQUIRE(error != std::string::npos);
    CHECK((error == 0 || failed.err.starts_with("warning: ")));
    CHECK(std::count(failed.err.begin() + static_cast<ptrdiff_t>(error), failed.err.end(), '\n') ==
          1);

    // The run reserves its disk space before it creates the run folder.
    if (fault.starts_with("fallocate")) {
      CHECK(!fs::exists(f / "run"));
      continue;
    }

    const auto there = list_checkpoints(f / "run");
    CHECK(!there.empty());
    for (const auto& path : there) CHECK_NOTHROW(verify_checkpoint(path));
    CHECK(train("run", "").code == 0);
    CHECK(lathe::test::difference(f / "reference", f / "run") == "");
    fs::remove_all(f / "run");
  }
}

TEST_CASE("a run killed while its optimizer state is read, written or saved resumes exactly",
          "[offload_runs]") {
  lathe::test::Trials trials(offloading);
  for (const char* point : {"offload: read", "offload: written"}) {
    for (const double nth : {1., 37., 211.}) CHECK(trials.trial({{point, nth, -1}}));
  }
  for (const int nth : {1, 2, 4}) {
    CHECK(trials.trial({{"save: model written", static_cast<double>(nth), 10 * (nth - 1)}}));
    CHECK(trials.trial({{"save: optimizer written", static_cast<double>(nth), 10 * (nth - 1)}}));
    CHECK(trials.trial({{"save: parent synced", static_cast<double>(nth), 10 * nth}}));
  }
  CHECK(trials.trial({{"step", 15, 10}, {"offload: written", 5, 10}, {"step", 3, 10}}));
  CHECK(trials.trial({{"", trials.seconds() / 2}}));
}

TEST_CASE(
    "plan forecasts the memory and the disk space of a run whose optimizer state is on the disk",
    "[offload_runs][process_memory]") {
  OffloadRuns runs;
  // The model has 24 MB of parameters, and its optimizer has 48 MB of state.
  const Kind deep{.name = "gpt",
                  .data = "text",
                  .keys = "n_layer = 2\nn_head = 4\nn_embd = 512\nblock_size = 8\n"};
  const auto take = [&](const std::string& name, const Words& more) {
    const Words keys =
        with_keys({"--train.grad_accum=1", "--train.batch_size=1", "--train.eval_interval=0",
                   "--data.workers=0", "--train.device=cpu", "--train.steps=3"},
                  more);

    lathe::test::write_config(runs.folder(), deep);
    Words plan{"plan", "kind.toml", "--json"}, bench{"bench", "step", "kind.toml"};
    plan.insert(plan.end(), keys.begin(), keys.end());
    bench.insert(bench.end(), keys.begin(), keys.end());

    const Finished planned = lathe::test::lathe_in_new_process(runs.folder(), plan);
    const Finished measured = lathe::test::lathe_in_new_process(runs.folder(), bench);
    INFO(name << planned.err << measured.err);
    REQUIRE(planned.code == 0);
    REQUIRE(measured.code == 0);

    Json forecast = parse_json(planned.out, "plan", Exit::internal);
    const double real =
        parse_json(measured.out, "bench", Exit::internal)["peak_rss_mb"].get<double>();
    CHECK(forecast["peak_rss_mb"].get<double>() == Approx(real).epsilon(0.05));
    forecast["real"] = real;
    return forecast;
  };

  const Json memory = take("memory", {}), disk = take("disk", offloading);
  const double state = 8.0 * 2 * 12 * 512 * 512 / (1 << 20);
  CHECK(disk["scratch_bytes"].get<double>() / (1 << 20) == Approx(state).epsilon(0.05));
  CHECK(memory["scratch_bytes"].get<int64_t>() == 0);
  CHECK(memory["real"].get<double>() - disk["real"].get<double>() > 0.6 * state);
}

TEST_CASE("--fit proposes optimizer state on the disk last", "[offload_runs]") {
  const TempFolder f(lathe::test::fast_folder());
  lathe::test::make_tiny_run(f.path());
  const std::string path = (f / "tiny.toml").string();
  // The state of this optimizer can't be made smaller in memory.
  const Overrides given{
      {"data.dir", (f / "data").string()}, {"model.n_layer", "4"},    {"model.n_embd", "256"},
      {"model.block_size", "8"},           {"train.batch_size", "1"}, {"train.grad_accum", "1"},
      {"optim.kind", "momentum"}};
  const auto needs = [&](const Overrides& more) {
    return lathe::test::resident_with(path, given, more);
  };
  const Overrides in_memory{{"memory.update_in_backward", "true"},
                            {"memory.recompute", "blocks"},
                            {"amp.dtype", "bf16"},
                            {"amp.master", "false"}};
  Overrides on_disk = in_memory;
  on_disk.emplace_back("memory.offload", "optimizer");
  const Forecast now{.dry = dry_step(load_config(path, given))};
  const auto is_offload = [](const auto& key) { return key.first == "memory.offload"; };

  const auto first = find_fit(path, given, now, needs(in_memory));
  REQUIRE(first);
  CHECK(std::none_of(first->begin(), first->end(), is_offload));

  const int64_t limit = needs(on_disk);
  REQUIRE(limit < needs(in_memory));
  const auto last = find_fit(path, given, now, limit);
  REQUIRE(last);
  CHECK(std::any_of(last->begin(), last->end(), is_offload));
  CHECK(needs(*last) <= limit);
}

}  // namespace
