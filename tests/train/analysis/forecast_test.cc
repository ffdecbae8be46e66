// Compares the forecasts of `lathe plan` with real runs.
#include "train/analysis/forecast.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/engine.h"
#include "autograd/ops/images.h"
#include "core/dry_run.h"
#include "core/io/json.h"
#include "core/kernels/gemm.h"
#include "core/mode.h"
#include "nn/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/kinds.h"
#include "tests/support/process.h"
#include "train/analysis/fit.h"
#include "train/step/stepper.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns the peak memory of tensors in two real steps of a config. Also evaluates before and
/// after these steps, unless train.eval_interval is 0.
int64_t measured_peak(LoadedConfig loaded) {
  install_allocator();
  const int64_t before = memory_stats().total;
  const RunData data = RunData::open(loaded);
  Session s = Session::make(data);
  Loader loader(*data.data, batch_sizes(s.config), 1, 0, s.config.data, s.device);
  reset_memory_peaks();
  const auto evaluate_once = [&] {
    if (loaded.config.train.eval_interval == 0) return;
    evaluate(*data.task, *s.model, *data.data, batch_sizes(s.config), 1, s.compute, s.device);
  };
  evaluate_once();
  for (int64_t step = 0; step < 2; ++step) run_step(s, loader, step);
  evaluate_once();
  return memory_stats().total_peak - before;
}

TEST_CASE("the peak memory of every optimizer is forecast, with Lathe's kernels and with ATen's",
          "[forecast]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  for (const std::string& kind : optimizer_names()) {
    for (const char* kernels : {"auto", "aten"}) {
      INFO(kind << " " << kernels);
      const LoadedConfig loaded =
          load_config((f / "tiny.toml").string(), {{"data.dir", (f / "data").string()},
                                                   {"train.device", "cpu"},
                                                   {"model.n_embd", "64"},
                                                   {"optim.kind", kind},
                                                   {"train.kernels", kernels}});
      const double real = static_cast<double>(measured_peak(loaded));
      CHECK(static_cast<double>(dry_step(loaded).peaks.total_peak) == Approx(real).epsilon(0.02));
    }
  }
  use_kernels(true);
}

TEST_CASE("a dry run forecasts the peak memory of the run", "[forecast]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const auto load = [&](std::vector<std::pair<std::string, std::string>> keys) {
    keys.insert(keys.begin(), {{"data.dir", (f / "data").string()},
                               {"train.threads", "2"},
                               {"train.device", "cpu"},
                               {"model.n_embd", "64"},
                               {"model.n_layer", "3"},
                               {"model.block_size", "32"}});
    return load_config((f / "tiny.toml").string(), keys);
  };

  const std::vector<std::vector<std::pair<std::string, std::string>>> cases{
      {},
      {{"amp.dtype", "bf16"}},
      {{"amp.dtype", "fp16"}, {"amp.working_copies", "false"}},
      {{"train.grad_accum", "1"}, {"amp.dtype", "bf16"}},
      {{"memory.recompute", "blocks"}},
      {{"memory.recompute", "sqrt"}, {"train.batch_size", "8"}},
      {{"memory.recompute", "selective"}, {"train.batch_size", "8"}},
      {{"memory.recompute", "selective"}, {"amp.dtype", "bf16"}},
      {{"memory.saved", "bf16"}, {"train.batch_size", "8"}},
      {{"memory.saved", "fp8"}, {"train.batch_size", "8"}},
      {{"memory.saved", "fp8"}, {"amp.dtype", "bf16"}, {"memory.recompute", "blocks.0-0"}},
      {{"optim.kind", "muon"}},
      {{"optim.kind", "muon"}, {"model.n_embd", "256"}, {"train.batch_size", "1"}},
      {{"optim.kind", "adamw8bit"}},
      {{"optim.kind", "adafactor"}},
      {{"optim.kind", "sgd"}, {"optim.ema_decay", "0.9"}},
      {{"train.kernels", "aten"}},
      {{"model.vocab_size", "5000"}, {"model.tie_weights", "false"}},
      {{"model.vocab_size", "20000"},  // an evaluation runs while gradients of a step exist
       {"model.tie_weights", "false"},
       {"train.eval_interval", "1"},
       {"train.batch_size", "2"},
       {"train.grad_accum", "1"}},
      {{"model.vocab_size", "5000"},
       {"train.batch_size", "1"},
       {"train.grad_accum", "1"}},  // the head's gradient is the largest tensor
  };

  for (const auto& keys : cases) {
    std::string name;
    for (const auto& [key, value] : keys) name += key + "=" + value + " ";
    INFO(name);
    const LoadedConfig loaded = load(keys);
    const auto real = static_cast<double>(measured_peak(loaded));
    const auto dry = static_cast<double>(dry_step(loaded).peaks.total_peak);

    // ATen's kernels allocate temporaries that a dry run does not count. They take up to 5.2% here,
    // depending on the processor.
    const bool atens = name.find("aten") != std::string::npos ||
                       (name.find("fp16") != std::string::npos && !gemm_ready(Element::f16));
    // Muon's threads do not always process their largest matrices at the same time.
    const bool muons = name.find("muon") != std::string::npos;
    const double allowed = atens ? 0.08 : muons ? 0.05 : 0.01;
    CHECK(std::abs(dry / real - 1) < allowed);

    // The comparison notices another batch size.
    LoadedConfig larger = loaded;
    larger.config.train.batch_size += 4;
    CHECK(static_cast<double>(dry_step(larger).peaks.total_peak) / real - 1 > allowed);
  }
}

TEST_CASE("a dry run of convolutions forecasts their peak memory, including oneDNN's copies",
          "[forecast]") {
  const TempFolder f(fast_folder());
  make_data(f);
  for (const char* keys :
       {"n_stage = 2\nn_block = 1\nn_channel = 16\n", "n_stage = 1\nn_block = 2\nn_channel = 48\n",
        "n_stage = 2\nn_block = 2\nn_channel = 64\n"}) {
    for (const char* recompute : {"none", "blocks"}) {
      INFO(keys << recompute);
      write_config(f, {"convnet", "images", keys});
      LoadedConfig loaded =
          load_config((f / "kind.toml").string(), {{"data.dir", (f / "images").string()},
                                                   {"train.device", "cpu"},
                                                   {"train.batch_size", "128"},
                                                   {"memory.recompute", recompute}});
      const auto real = static_cast<double>(measured_peak(loaded));
      const auto dry = static_cast<double>(dry_step(loaded).peaks.total_peak);
      // Without the copies, the forecast would be 14% to 17% lower. The size of the copies depends
      // on the processor.
      CHECK(dry == Approx(real).epsilon(0.06));
    }
  }
}

TEST_CASE("a dry run of convolutions computes nothing", "[forecast]") {
  const DryRun dry;
  const int64_t resident = peak_rss_bytes();
  const Conv2dOptions strided{.stride = 2, .padding = 3};
  const Variable x = Variable::parameter(at::empty({64, 3, 1024, 1023})),
                 w = Variable::parameter(at::empty({64, 3, 7, 7}));
  const Variable y = conv2d(x, w, {}, strided);
  CHECK(y.sizes() == at::IntArrayRef({64, 64, 512, 512}));
  const Variable back = Variable::parameter(at::empty({64, 32, 4, 4}));
  const Variable z = conv_transpose2d(y, back, {}, {.stride = 2, .padding = 1});
  CHECK(z.sizes() == at::IntArrayRef({64, 32, 1024, 1024}));
  backward(sum(z));
  for (const Variable& p : {x, w, back}) CHECK(p.grad().sizes() == p.sizes());
  const at::Tensor up =
      at::conv_transpose2d(at::empty({2, 8, 5, 5}), at::empty({8, 3, 3, 3}), {}, 2, 1, 1, 2);
  CHECK(up.sizes() == at::IntArrayRef({2, 6, 10, 10}));
  CHECK(memory_stats().total_peak > int64_t{12} << 30);
  CHECK(peak_rss_bytes() - resident < int64_t{100} << 20);
}

TEST_CASE("a dry run of bucketize writes to no memory", "[forecast]") {
  const auto places = [](bool narrow) {
    const at::Tensor boundaries = torch::tensor({-2.0f, -1.0f, 3.0f});
    return at::bucketize(at::zeros({5, 7}), boundaries, narrow);
  };
  CHECK(places(true).eq(2).all().item<bool>());  // outside a dry run
  const DryRun dry;
  for (const bool narrow : {false, true}) {
    const at::Tensor found = places(narrow);
    CHECK(found.sizes() == at::IntArrayRef({5, 7}));
    CHECK(found.scalar_type() == (narrow ? at::kInt : at::kLong));
    const auto* bytes = static_cast<const char*>(found.const_data_ptr());
    CHECK(std::all_of(bytes, bytes + found.nbytes(), [](char byte) { return byte == 0; }));
  }
}

TEST_CASE("a model that is too large for this machine is planned in little memory", "[forecast]") {
  const TempFolder f(fast_folder());
  write_file(
      f / "large.toml",
      "[model]\nn_layer = 32\nn_head = 32\nn_embd = 4096\nblock_size = 2048\nvocab_size = 32000\n"
      "[data]\ndir = \"nowhere\"\n[train]\nbatch_size = 8\n");
  const LoadedConfig loaded = load_config((f / "large.toml").string(), {});
  const int64_t before = memory_stats().reserved, resident = peak_rss_bytes();
  const DryStep d = dry_step(loaded);
  CHECK(d.parameters > 6'500'000'000);
  // Parameters, gradients and two state tensors take 16 bytes per parameter. Activations take
  // additional memory.
  CHECK(d.peaks.total_peak > 16 * d.parameters);
  CHECK(d.made.used[static_cast<size_t>(Memory::parameters)] == 4 * d.parameters);
  CHECK(d.checkpoint_bytes == 12 * d.parameters);
  CHECK(d.micro_batch.matmul() == Approx(d.formula_flops).epsilon(0.01));
  CHECK(memory_stats().reserved == before);
  CHECK(peak_rss_bytes() - resident < int64_t{300} << 20);
  CHECK_FALSE(is_dry_run());
  LoadedConfig large = loaded;
  const RunData no_data{
      .loaded = large, .data = nullptr, .task = &task_of(large, {.task = "language"}), .sizes = {}};
  CHECK_FALSE(resource_needs(large, no_data).enough);
}

TEST_CASE("a plan measures a smaller model even if the data's token ids exceed its vocabulary",
          "[forecast]") {
  const TempFolder f(fast_folder());
  std::string tokens;
  for (uint16_t i = 0; i < 3000; ++i) {
    const auto id = static_cast<uint16_t>(i * 20);
    tokens.append(reinterpret_cast<const char*>(&id), sizeof id);
  }
  fs::create_directory(f / "data");
  write_file(f / "data/train.bin", tokens);
  write_file(f / "data/val.bin", tokens);
  write_file(f / "wide.toml",
             "[model]\nn_layer = 2\nn_head = 4\nn_embd = 768\nblock_size = 16\nvocab_size = 65000\n"
             "tie_weights = false\n[data]\ndir = \"data\"\n[train]\nbatch_size = 1\n");
  const Finished r = lathe_in(f, {"plan", "wide.toml"});
  INFO(r.err);
  CHECK(r.code == 0);
  CHECK_THAT(r.out, ContainsSubstring("smaller version"));
}

TEST_CASE("a plan counts every micro-batch of a step", "[forecast]") {
  DryStep small, dry;
  small.micro_batch.forward.matmul = 60;
  small.micro_batch.backward.other = 40;
  small.trained = 50;
  dry.micro_batch.forward.other = 100;
  dry.micro_batch.backward.matmul = 200;
  dry.trained = 100;
  RunConfig config;
  for (const int64_t micro_batches : {1, 8}) {
    config.train.grad_accum = micro_batches;
    const StepTimes times =
        times_of_step(config, dry, {.forward = 1, .backward = 2, .optimizer = 0.5}, small);
    CHECK(times.forward == Approx(3.0 * static_cast<double>(micro_batches)));
    CHECK(times.backward == Approx(6.0 * static_cast<double>(micro_batches)));
    CHECK(times.optimizer == Approx(1.0));  // one update a step
  }

  // A plan also shows the FLOPs of a step, and the time that a GPU needs for them according to its
  // data sheet.
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const std::vector<std::string> keys{"--train.grad_accum=8", "--train.batch_size=64",
                                      "--model.n_embd=64"};
  const LoadedConfig loaded =
      load_config((f / "tiny.toml").string(), {{"data.dir", (f / "data").string()},
                                               {"train.grad_accum", "8"},
                                               {"train.batch_size", "64"},
                                               {"model.n_embd", "64"}});
  const DryStep step = dry_step(loaded);
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"plan", "tiny.toml"};
    words.insert(words.end(), keys.begin(), keys.end());
    words.insert(words.end(), more.begin(), more.end());
    const Finished r = lathe_in(f, words);
    INFO(r.err);
    REQUIRE(r.code == 0);
    return r.out;
  };
  const Json json = parse_json(plan({"--json"}), "plan", Exit::internal);
  CHECK(json["matmul_flops_per_step"].get<double>() == Approx(8 * step.micro_batch.matmul()));
  CHECK(json["flops_per_step"].get<double>() == Approx(8 * step.micro_batch.total()));
  const auto [gpu, count] = parse_gpus("H100");
  const double seconds = 8 * step.micro_batch.matmul() / (0.4 * gpu.tf32_flops) +
                         28 * static_cast<double>(step.trained) / gpu.bytes_per_second;
  const std::string text = plan({"--for", "H100"});
  INFO(text);
  const size_t at = text.find("1 x H100");
  REQUIRE(at != std::string::npos);
  double milliseconds = 0, tokens_per_second = 0;
  REQUIRE(std::sscanf(text.c_str() + text.find("time of a step", at),
                      "time of a step %lf ms (%lf tokens/s)", &milliseconds,
                      &tokens_per_second) == 2);
  CHECK(tokens_per_second == Approx(8 * 64 * 16 / seconds).epsilon(1e-4));
}

TEST_CASE("a plan counts the checkpoints that the run's folder has when the run ends",
          "[forecast]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  int64_t runs = 0;
  const auto counts = [&](const Overrides& keys) {
    const std::string out = "run" + std::to_string(runs++);
    std::vector<std::string> words{"train", "tiny.toml", "--train.out_dir=" + out,
                                   "--train.eval_interval=0"};
    for (const auto& [key, value] : keys) words.push_back("--" + key + "=" + value);
    const Finished r = lathe_in(f, words);
    INFO(r.err);
    REQUIRE(r.code == 0);
    const int64_t planned = kept_checkpoints(load_config((f / "tiny.toml").string(), keys).config);
    return std::pair(planned, std::ssize(list_checkpoints(f / out)));
  };

  using Counts = std::pair<int64_t, std::ptrdiff_t>;
  const auto keys = [](const std::string& steps, const std::string& interval,
                       const std::string& keep) {
    return Overrides{
        {"train.steps", steps}, {"checkpoint.interval", interval}, {"checkpoint.keep", keep}};
  };

  // Step 9 is due as a multiple of 3 and as the last step, and is saved once.
  CHECK(counts(keys("9", "3", "50")) == Counts(3, 3));
  CHECK(counts(keys("10", "3", "50")) == Counts(4, 4));
  CHECK(counts(keys("9", "3", "2")) == Counts(2, 2));
  CHECK(counts(keys("2", "3", "2")) == Counts(1, 1));
  CHECK(counts(keys("3", "0", "2")) == Counts(1, 1));

  // The checkpoints of steps 4, 8 and 12 are kept. Step 12 is also the newest.
  Overrides every = keys("12", "2", "1");
  every.emplace_back("checkpoint.keep_every", "4");
  CHECK(counts(every) == Counts(3, 3));
}

TEST_CASE(
    "plan handles an odd number of heads, very wide models, and an optimizer that dominates a step",
    "[forecast]") {
  const TempFolder f(fast_folder());
  write_file(
      f / "large.toml",
      "[model]\nn_layer = 48\nn_head = 25\nn_embd = 1600\nblock_size = 1024\nvocab_size = 50257\n"
      "[data]\ndir = \"nowhere\"\n[train]\nbatch_size = 4\n");
  const auto plan = [&](const std::vector<std::string>& keys) {
    std::vector<std::string> words{"plan", "large.toml"};
    words.insert(words.end(), keys.begin(), keys.end());
    const Finished r = lathe_in(f, words);
    INFO(r.err);
    CHECK(r.code == 0);
    return r.out;
  };

  const std::string large = plan({});
  CHECK_THAT(large, ContainsSubstring("(1.56 billion)"));
  CHECK_THAT(large, ContainsSubstring("smaller version"));
  CHECK_THAT(plan({"--model.kind=llama", "--model.n_head=2", "--model.n_embd=100000",
                   "--model.n_layer=2"}),
             ContainsSubstring("smaller version"));

  // The cost of the measured model must be small. Newton-Schulz counts toward this cost, so even
  // for this width a smaller version is measured.
  CHECK_THAT(
      plan({"--optim.kind=muon", "--model.n_layer=4", "--model.n_head=16", "--model.n_embd=1024",
            "--model.block_size=64", "--model.vocab_size=4096", "--train.batch_size=1"}),
      ContainsSubstring("smaller version"));
}

TEST_CASE("the matrix products of an update are counted", "[forecast]") {
  const TempFolder f(fast_folder());
  // Each of the 2 layers has matrices [192, 64], [64, 64], [256, 64] and [64, 256]. Muon makes 5
  // iterations.
  const auto load = [&](const std::string& kind) {
    write_file(f / "muon.toml",
               "[model]\nn_layer = 2\nn_head = 2\nn_embd = 64\nblock_size = 16\nvocab_size = "
               "50\n[data]\ndir = "
               "\"nowhere\"\n[train]\nthreads = 8\ndevice = \"cpu\"\n[optim]\nkind = \"" +
                   kind + "\"\n");
    return load_config((f / "muon.toml").string(), {});
  };
  const double n = 64, wide = 192 + 64 + 256 + 256;
  CHECK(dry_step(load("muon")).update_flops == 2 * 5 * (4 * n * n * wide + 4 * 2 * n * n * n));
  CHECK(dry_step(load("adamw")).update_flops == 0);
}

TEST_CASE("train prints the memory and the disk space that it needs when it starts", "[forecast]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const Finished r = lathe_in(f, {"train", "tiny.toml", "--train.steps=1", "--train.device=cpu"});
  CHECK(r.code == 0);
  CHECK_THAT(r.out + r.err, ContainsSubstring("needs     about 0."));
  const RunData data =
      RunData::open(load_config((f / "tiny.toml").string(), {{"data.dir", (f / "data").string()}}));
  CHECK(resource_needs(data.loaded, data).enough);
}

TEST_CASE("a run that needs far more memory than is free is refused, and the error names --force",
          "[forecast]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  const auto train = [&](const std::string& embd, const std::string& layers,
                         const std::string& force) {
    return lathe_in(f, {"train", "tiny.toml", "--train.out_dir=run", "--train.device=cpu",
                        "--train.steps=1", "--model.n_head=1", "--model.n_embd=" + embd,
                        "--model.n_layer=" + layers, "--force", force});
  };
  const Finished refused = train("8192", "400", "false");  // needs 5 TB
  INFO(refused.err);
  CHECK(refused.code == 9);
  CHECK_THAT(refused.err, ContainsSubstring("GB free") && ContainsSubstring("--force true"));
  CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
  CHECK(!fs::exists(f / "run"));
  CHECK(train("16", "1", "false").code == 0);

  const RunData data =
      RunData::open(load_config((f / "tiny.toml").string(), {{"data.dir", (f / "data").string()}}));
  CHECK(!resource_needs(data.loaded, data).must_not_start);
}

}  // namespace
