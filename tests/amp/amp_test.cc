// Tests of mixed precision: autocast, loss scaling, fp8, parameters without master weights, and
// small versions of the experiments of docs/reference/precision.md.

#include <thread>

#include <ATen/Parallel.h>

#include "amp/amp.h"
#include "amp/grad_scaler.h"
#include "autograd/engine.h"
#include "autograd/fp8.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/io/json.h"
#include "core/memory.h"
#include "tests/support/catch.h"
#include "tests/support/gpt.h"
#include "tests/support/process.h"
#include "train/commands/precision.h"
#include "train/session/passes.h"
#include "train/store/checkpoint.h"

namespace {

using namespace lathe;
using namespace lathe::test;

double number(const Json& j) {
  return j.is_string() ? std::stod(j.get<std::string>()) : j.get<double>();
}

/// Returns the number of steps in which Lathe's results differ from a recording of
/// torch.amp.GradScaler (tests/oracles/grad_scaler/record.py).
int differing_steps(const Json& recording, double backoff) {
  OptimConfig c;
  c.kind = "sgd";
  c.weight_decay = 0;
  c.grad_clip = 0;
  const std::vector<NamedParameter> p{
      {.path = "p",
       .parameter = Variable::parameter(torch::tensor(at::ArrayRef<float>{1, -2})),
       .role = Role::bias}};
  Optimizer optimizer(c, p);
  GradScaler scaler({.dynamic = true,
                     .growth_factor = recording["growth"],
                     .backoff_factor = backoff,
                     .growth_interval = recording["interval"],
                     .min_scale = 1e-30,
                     .max_skips = 1000},
                    recording["init"], at::kCPU);

  int different = 0;
  for (const Json& step : recording["steps"]) {
    const auto g = static_cast<float>(number(step["gradient"]));
    p[0].parameter.leaf().grad = torch::tensor(at::ArrayRef<float>{g, 0.5f}) * scaler.scale();
    StepOptions options;
    scaler.prepare(options);
    optimizer.step(0.125, options);

    const ScaleState s = scaler.state();
    const at::Tensor& now = p[0].parameter.data();
    const bool same = s.scale == step["scale"].get<float>() &&
                      s.growth_tracker == step["tracker"].get<int>() &&
                      now[0].item<float>() == step["p"][0].get<float>() &&
                      now[1].item<float>() == step["p"][1].get<float>() &&
                      scaler.scale().item<float>() == s.scale;
    different += same ? 0 : 1;
  }
  return different;
}

TEST_CASE("GradScaler matches torch.amp.GradScaler step by step", "[amp]") {
  const std::string path =
      (test::source_folder() / "tests/oracles/grad_scaler/steps.json").string();
  const Json file = parse_json(slurp(path), path, Exit::internal);
  CHECK(file["recordings"].size() == 5);
  for (const Json& r : file["recordings"]) CHECK(differing_steps(r, r["backoff"]) == 0);
  CHECK(differing_steps(file["recordings"][0], 0.25) > 50);  // the comparison notices a wrong
                                                             // backoff
}

TEST_CASE("a scaler that resumes with a shorter growth interval can grow at the next step",
          "[amp]") {
  const std::vector<NamedParameter> p{
      {.path = "p", .parameter = Variable::parameter(torch::ones({2})), .role = Role::bias}};
  Optimizer optimizer(OptimConfig(), p);
  GradScaler scaler({.growth_interval = 100}, 8, at::kCPU);
  scaler.load({.scale = 8, .growth_tracker = 500});
  StepOptions options;
  scaler.prepare(options);
  p[0].parameter.leaf().grad = torch::ones({2});
  optimizer.step(0.1, options);
  CHECK(scaler.state().scale == 16);
  CHECK(scaler.state().growth_tracker == 0);
}

TEST_CASE("an overflow at the minimum loss scale, or too many skips in a row, ends the run",
          "[amp]") {
  OptimConfig c;
  const std::vector<NamedParameter> p{
      {.path = "p", .parameter = Variable::parameter(torch::ones({2})), .role = Role::bias}};
  const auto steps_to_end = [&](const ScalePolicy& policy, float scale) {
    Optimizer optimizer(c, p);
    const GradScaler scaler(policy, scale, at::kCPU);
    StepOptions options;
    scaler.prepare(options);
    for (int64_t step = 0; step < 100; ++step) {
      p[0].parameter.leaf().grad = torch::full({2}, step % 10 == 3 ? 1.0 : INFINITY);
      options.step = step;
      optimizer.step(0.1, options);
      if (const auto failed = optimizer.control().failed_step; failed != 0) return failed;
    }
    return int64_t{0};
  };
  // Counted from 1, steps 1 to 3 are skipped with the scales 8, 4 and 2. Step 4 is finite. Step 5
  // overflows with the scale 1, which can't be lowered.
  CHECK(steps_to_end({.min_scale = 1, .max_skips = 100}, 8) == 5);
  CHECK(steps_to_end({.min_scale = 1e-30, .max_skips = 7}, 8) == 11);  // 7 skips after the finite
                                                                       // step 4
  CHECK(steps_to_end({.dynamic = false, .max_skips = 4}, 8) == 8);
  CHECK(steps_to_end({.dynamic = false, .max_skips = 10}, 8) == 0);
}

TEST_CASE(
    "if the gradient of one micro-batch is not finite, the update with the accumulated gradient is "
    "skipped",
    "[amp]") {
  GPTConfig m;
  m.n_layer = 1;
  m.n_head = 1;
  m.n_embd = 8;
  m.block_size = 4;
  m.vocab_size = 7;
  GPT model = make_gpt(m, 1);
  const auto params = parameters(model);
  const Batch batch{.inputs = torch::arange(8, at::kLong).remainder(7).view({2, 4}),
                    .targets = torch::zeros({2, 4}, at::kLong)};

  for (const bool bad : {false, true}) {
    Optimizer optimizer({}, params);
    const GradScaler scaler({}, 1024, at::kCPU);
    StepOptions options;
    scaler.prepare(options);

    zero_grad(model);
    const at::Tensor before = params[0].parameter.data().clone();
    run_micro_batch(model, batch, 16, at::kHalf, {}, scaler.scale());
    run_micro_batch(model, batch, 16, at::kHalf, {},
                    bad ? torch::tensor(std::numeric_limits<float>::infinity()) : scaler.scale());
    optimizer.step(0.1, options);

    CHECK(optimizer.control().updates == (bad ? 0 : 1));
    CHECK(params[0].parameter.data().equal(before) == bad);
    CHECK(scaler.state().scale == (bad ? 512 : 1024));
    CHECK(scaler.state().skipped == (bad ? 1 : 0));
  }
}

TEST_CASE("autocast can be nested, can be switched off, and ends with its scope", "[amp]") {
  const Variable x(torch::ones({2, 2})), w = Variable::parameter(torch::ones({2, 2}));
  const auto dtype = [&] { return linear(x, w).dtype(); };
  CHECK(dtype() == at::kFloat);
  {
    const Autocast outer(at::kBFloat16);
    CHECK(dtype() == at::kBFloat16);
    {
      const Autocast inner(at::kHalf);
      CHECK(dtype() == at::kHalf);
      const Autocast off(at::kFloat);
      CHECK(dtype() == at::kFloat);
    }
    CHECK(dtype() == at::kBFloat16);
    CHECK(softmax(linear(x, w), -1).dtype() == at::kFloat);
    at::ScalarType elsewhere = at::kByte;
    std::thread([&] { elsewhere = dtype(); }).join();
    CHECK(elsewhere == at::kFloat);
    const Autocast fp8(at::kFloat8_e4m3fn);
    CHECK(dtype() == at::kBFloat16);  // w is not the weight of an fp8 layer
  }
  CHECK(dtype() == at::kFloat);
}

int64_t cast_bytes() { return memory_stats().used[static_cast<size_t>(Memory::casts)]; }

TEST_CASE(
    "the cast cache keeps the cast of a weight until the outermost autocast ends, and gradients "
    "flow through the cast",
    "[amp]") {
  install_allocator();
  const at::Tensor data = torch::linspace(-1, 1, 4096).view({64, 64});
  const Variable x(torch::linspace(0, 1, 128).view({2, 64}));
  at::Tensor grads[2];

  for (const bool cache : {true, false}) {
    const Variable w = Variable::parameter(data.clone());
    {
      const Autocast autocast({at::kBFloat16, cache});
      {
        const NoGrad no_grad;
        linear(x, w);  // a cast without a graph must not cut off the gradient of y
      }
      const int64_t one = cast_bytes();
      CHECK(one == (cache ? 8192 : 0));
      Variable y;
      {
        const Autocast inner({at::kBFloat16, cache});
        y = linear(linear(x, w), w);
      }
      // With the cache, one cast was made without a graph and one with a graph. Without the cache,
      // there are the two casts that y holds.
      CHECK(cast_bytes() == 2 * 8192);
      backward(sum(y));
      const at::Tensor before = linear(x, w).data();
      w.data().mul_(2);
      CHECK(!linear(x, w).data().equal(before));  // a changed weight is cast again
    }
    CHECK(cast_bytes() == 0);
    grads[cache ? 0 : 1] = w.grad();
  }

  {
    // Run two backward passes inside one guard, as in gradient accumulation.
    const Variable w = Variable::parameter(data.clone());
    const Autocast autocast(at::kBFloat16);
    backward(sum(linear(linear(x, w), w)));
    backward(sum(linear(linear(x, w), w)));
    CHECK((w.grad() - 2 * grads[0]).abs().max().item<double>() == 0);
  }

  // The gradient of a cached cast is accumulated in bfloat16, which adds a rounding.
  CHECK((grads[0] - grads[1]).abs().max().item<double>() <=
        0x1p-7 * grads[1].abs().max().item<double>());

  // Without autocast, the gradient differs only by a few roundings to bfloat16.
  const Variable w = Variable::parameter(data.clone());
  backward(sum(linear(linear(x, w), w)));
  CHECK((grads[1] - w.grad()).abs().max().item<double>() <=
        4 * 0x1p-7 * w.grad().abs().max().item<double>());
}

TEST_CASE("fp8 rounds ties to even, saturates, and gives NaN if the maximum is infinite", "[amp]") {
  const auto through = [](std::vector<float> values, double largest, at::ScalarType format) {
    const Fp8Tensor q =
        to_fp8(torch::tensor(values), torch::tensor(static_cast<float>(largest)), format);
    return q.data.to(at::kFloat) * q.factor;
  };
  // With the scale 1, every e4m3 value is kept. Ties go to even (17 -> 16, 19 -> 20 with 3 bits),
  // and 500 saturates.
  CHECK(through({448, 17, 19, 500, 0.001953125f, -0.0009765625f, 0}, 448, at::kFloat8_e4m3fn)
            .equal(torch::tensor({448.f, 16.f, 20.f, 448.f, 0.001953125f, -0.f, 0.f})));
  CHECK(through({57344, 9, 11, -60000}, 57344, at::kFloat8_e5m2)
            .equal(torch::tensor({57344.f, 8.f, 12.f, -57344.f})));
  CHECK(through({0, 0}, 0, at::kFloat8_e4m3fn).equal(torch::zeros({2})));
  CHECK(through({1, INFINITY}, INFINITY, at::kFloat8_e5m2).isnan().all().item<bool>());
}

TEST_CASE("fp8 matrix products do not depend on the number of threads", "[amp]") {
  const int threads = at::get_num_threads();
  const auto q = [](int64_t rows, int64_t columns, uint64_t seed) {
    torch::manual_seed(seed);
    const at::Tensor t = torch::randn({rows, columns});
    return to_fp8(t, t.abs().max(), at::kFloat8_e4m3fn);
  };
  // This matrix product has a small result and a long inner dimension, along which libraries divide
  // the work among threads.
  const Fp8Tensor a = q(64, 4096, 1), b = q(48, 4096, 2);
  std::vector<at::Tensor> results;
  for (const int n : {1, 2, 3}) {
    at::set_num_threads(n);
    results.push_back(fp8_matmul_nt(a, b, {}, at::kFloat));
  }
  at::set_num_threads(threads);
  CHECK(results[1].equal(results[0]));
  CHECK(results[2].equal(results[0]));

  const at::Tensor exact =
      a.data.to(at::kDouble).mm(b.data.to(at::kDouble).t()) * (a.factor * b.factor).to(at::kDouble);
  CHECK(distance(results[0], exact) < 1e-5);
}

TEST_CASE("delayed fp8 scaling uses the maxima of previous steps", "[amp]") {
  const Fp8Scaling s{torch::zeros({3, 1 + 2})};
  const auto largest = [&](float x) {
    return s.largest(Fp8Scaling::input, torch::tensor({x, -x / 2})).item<float>();
  };
  CHECK(largest(3) == 3);  // without a history, the result is this tensor's maximum
  CHECK(largest(2) == 2);
  s.advance();
  CHECK(largest(100) == 3);  // the result is the maximum of the previous step
  {
    const NoGrad evaluation;
    CHECK(largest(1000) == 3);
  }
  s.advance();
  CHECK(largest(1) == 100);
  s.advance();
  CHECK(largest(1) == 100);  // two steps are remembered: 100 and 1
  s.advance();
  CHECK(largest(1) == 1);
  CHECK(std::isinf(largest(INFINITY)));  // infinity is returned now, but not remembered
  s.advance();
  CHECK(largest(5) == 1);
}

TEST_CASE("an fp8 layer accepts a batch without rows", "[amp]") {
  const Variable w = Variable::parameter(torch::ones({48, 32}));
  w.leaf().precision.fp8 = std::make_shared<Fp8Scaling>();
  const Variable x = Variable::parameter(torch::ones({0, 32}));
  const Autocast autocast(at::kFloat8_e4m3fn);
  const Variable y = linear(x, w);
  CHECK(y.sizes() == at::IntArrayRef{0, 48});
  backward(sum(y));
  CHECK(w.grad().equal(torch::zeros({48, 32})));
  CHECK(x.grad().sizes() == at::IntArrayRef{0, 32});
}

TEST_CASE("stochastic rounding is exact on average; rounding to nearest loses small updates",
          "[amp]") {
  constexpr int64_t n = 200000;
  const int threads_before = at::get_num_threads();
  const auto after = [](at::ScalarType dtype, std::optional<uint64_t> seed, int threads,
                        StepControl* control) {
    at::set_num_threads(threads);
    OptimConfig c;
    c.kind = "sgd";
    c.weight_decay = 0;
    c.grad_clip = 0;
    const std::vector<NamedParameter> p{
        {.path = "w",
         .parameter = Variable::parameter(torch::full({n, 1}, -1.5, dtype)),
         .role = Role::weight}};
    Optimizer optimizer(c, p, seed);
    p[0].parameter.leaf().grad = torch::ones({n, 1}, dtype);
    for (int i = 0; i < 4; ++i) optimizer.step(0x1p-12);  // 1/32 of bfloat16's spacing at 1.5
    *control = optimizer.control();
    return p[0].parameter.data().to(at::kDouble);
  };

  StepControl c;
  const at::Tensor w = after(at::kBFloat16, 1, 1, &c);
  // There are 4 steps of 2^-12. Each is 2^-5 of the spacing 2^-7, so the mean has a standard
  // deviation of 2^-7 sqrt(4 / 32 / n) = 6e-6.
  CHECK(w.mean().item<double>() == Approx(-1.5 - 4 * 0x1p-12).margin(5 * 6e-6));
  CHECK(static_cast<double>(c.lost) / static_cast<double>(c.moved) ==
        Approx(1 - 1.0 / 32).margin(0.01));

  CHECK(after(at::kBFloat16, 1, 2, &c).equal(w));   // equal on any number of threads
  CHECK(!after(at::kBFloat16, 2, 1, &c).equal(w));  // another seed rounds differently

  // Without a seed, weights are rounded to nearest, which loses every update.
  CHECK(after(at::kBFloat16, std::nullopt, 1, &c).eq(-1.5).all().item<bool>());
  CHECK(c.moved == n);
  CHECK(c.lost == n);

  // float16 parameters are rounded to nearest, even with a seed. The spacing of float16 at 1.5 is
  // 2^-10, so an update of 2^-12 is lost. float32 keeps such an update. Updates of float32
  // parameters are not counted.
  CHECK(after(at::kHalf, 1, 1, &c).eq(-1.5).all().item<bool>());
  CHECK(c.lost == n);
  CHECK(after(at::kFloat, 1, 1, &c).eq(-1.5 - 4 * 0x1p-12).all().item<bool>());
  CHECK(c.moved == 0);
  at::set_num_threads(threads_before);
}

TEST_CASE("long sums stall in a low-precision dtype, but not in float32", "[amp]") {
  for (const auto& e : accumulation_errors(5)) {
    INFO(e.n << " terms of " << toString(e.dtype));
    const double spacing = e.dtype == at::kHalf ? 0x1p-11 : 0x1p-8;  // half the relative spacing,
                                                                     // the error of one rounding
    CHECK(e.dot_fp32 < 1e-4);
    CHECK(e.norm_fp32 < 1e-4);
    CHECK(e.dot_op < spacing + 1e-5);  // the result is rounded once
    CHECK(e.norm_op < 1e-12);          // summed in float64
    if (e.n == 100000) {
      CHECK(e.dot_low > 0.5);
      CHECK(e.norm_low > 0.5);
    }
  }
}

std::vector<Json> metrics_of(const fs::path& run) {
  std::vector<Json> out;
  std::istringstream text(slurp(run / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);)
    out.push_back(parse_json(line, "metrics", Exit::internal));
  return out;
}

TEST_CASE("every precision trains to the loss of fp32, and resumes bitwise exactly", "[amp]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const std::vector<std::pair<std::string, std::vector<std::string>>> runs{
      {"fp32", {}},
      {"bf16", {"--amp.dtype=bf16"}},
      {"uncached", {"--amp.dtype=bf16", "--amp.working_copies=false", "--amp.cache=false"}},
      {"fp16", {"--amp.dtype=fp16"}},
      // Gradients overflow at first. Then the scale grows every third step until they overflow
      // again.
      {"moving", {"--amp.dtype=fp16", "--amp.loss_scale=16777216", "--amp.growth_interval=3"}},
      {"fp8", {"--amp.dtype=fp8", "--amp.fp8_edge_blocks=0"}},
      {"delayed", {"--amp.dtype=fp8", "--amp.fp8_edge_blocks=0", "--amp.fp8_scaling=delayed"}},
      {"small", {"--amp.dtype=bf16", "--amp.master=false"}},
      {"lowsave", {"--amp.dtype=bf16", "--checkpoint.dtype=bf16"}}};

  double wide = 0;
  for (const auto& [name, flags] : runs) {
    INFO(name);
    const auto command = [&, &flags = flags](const std::string& out, const std::string& limit) {
      std::vector<std::string> args{"train", "tiny.toml", "--train.out_dir=" + out, limit};
      args.insert(args.end(), flags.begin(), flags.end());
      return args;
    };

    const Finished whole = lathe_in(f, command(name, "--train.max_time=0"));
    INFO(whole.err);
    REQUIRE(whole.code == 0);

    // Repeat the run in three parts. A time limit ends the first part, and may end the second part.
    const std::string parts = name + "-parts";
    REQUIRE(lathe_in(f, command(parts, "--train.max_time=0.01")).code == 75);
    REQUIRE(lathe_in(f, command(parts, "--train.max_time=0.4")).code % 75 == 0);
    REQUIRE(lathe_in(f, command(parts, "--train.max_time=0")).code == 0);
    CHECK(difference(f / name, f / parts) == "");

    const auto lines = metrics_of(f / name);
    const double loss = lines.back()["val_loss"];
    if (name == "fp32") wide = loss;
    // In the run "moving", some updates are skipped, so this run trains less. The other runs differ
    // only by rounding.
    CHECK(loss == Approx(wide).epsilon(name == "moving"                     ? 0.3
                                       : name == "fp8" || name == "delayed" ? 0.01
                                                                            : 0.005));
    const Json last = lines[lines.size() - 2];
    CHECK(last["step"] == 40);
    CHECK(last["updates"].get<int>() + last.value("skipped", 0) == 40);
    CHECK((last.value("skipped", 0) > 0) == (name == "moving"));
    CHECK(last.contains("updates_lost") == (name == "small"));
    CHECK(lathe_in(f, {"eval", name}).code == 0);
    CHECK_THAT(slurp(f / name / "log.txt"),
               ContainsSubstring(
                   "checkpoints in " +
                   std::string(name == "small" || name == "lowsave" ? "bfloat16" : "float32")));
  }

  CHECK_THAT(lathe_in(f, {"inspect", "lowsave/checkpoints/step-00000040/model.safetensors"}).out,
             ContainsSubstring("blocks.0.attn.qkv.weight  BF16"));
  CHECK_THAT(lathe_in(f, {"inspect", "moving/checkpoints/step-00000040"}).out,
             ContainsSubstring("loss scale"));
}

TEST_CASE("a run that overflows at any loss scale exits with 5 and keeps its last checkpoint",
          "[amp]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--amp.dtype=fp16", "--train.steps=10"}).code == 0);
  const std::string before = slurp(f / "runs/tiny/checkpoints/step-00000010/model.safetensors");
  // With so large a learning rate, activations overflow float16 at any loss scale.
  const Finished r = lathe_in(
      f, {"train", "tiny.toml", "--amp.dtype=fp16", "--optim.lr=1e6", "--schedule.min_lr=1e6"});
  INFO(r.out << r.err);
  CHECK(r.code == 5);
  CHECK_THAT(r.err, ContainsSubstring("optim.lr") && ContainsSubstring("amp.dtype = \"bf16\""));
  CHECK(slurp(f / "runs/tiny/checkpoints/step-00000010/model.safetensors") == before);
  const Finished fixed =
      lathe_in(f, {"train", "tiny.toml", "--amp.dtype=fp16", "--amp.scaler=fixed",
                   "--amp.loss_scale=16777216", "--amp.max_skips=3", "--train.out_dir=fixed"});
  CHECK(fixed.code == 5);
  CHECK_THAT(fixed.err, ContainsSubstring("step 3: 3 ") && ContainsSubstring("16777216"));
  CHECK(list_checkpoints(f / "fixed").empty());
}

TEST_CASE("fp16 weights stall where updates are small, unless they have master weights", "[amp]") {
  const TempFolder f;
  make_tiny_run(f.path());

  const auto loss_of = [&](const std::string& name, std::vector<std::string> flags) {
    std::vector<std::string> args{"train",
                                  "tiny.toml",
                                  "--train.out_dir=" + name,
                                  "--optim.lr=2e-6",
                                  "--schedule.kind=constant",
                                  "--train.steps=300",
                                  "--checkpoint.interval=0",
                                  "--train.eval_interval=300"};
    args.insert(args.end(), flags.begin(), flags.end());
    REQUIRE(lathe_in(f, args).code == 0);
    return metrics_of(f / name);
  };

  const auto wide = loss_of("wide", {}), master = loss_of("master", {"--amp.dtype=fp16"}),
             none = loss_of("none", {"--amp.dtype=fp16", "--amp.master=false"});
  const auto gain = [](const std::vector<Json>& lines) {
    return lines.front()["val_loss"].get<double>() - lines.back()["val_loss"].get<double>();
  };

  CHECK(gain(wide) > 0);
  CHECK(gain(master) == Approx(gain(wide)).epsilon(0.05));
  CHECK(gain(none) < 0.7 * gain(wide));

  // The last line has the validation loss; the line before it has the last step's metrics.
  CHECK(none[none.size() - 2]["updates_lost"].get<double>() > 0.5);
}

TEST_CASE("float16 loses small gradients, but fewer with a loss scale", "[amp]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.steps=20"}).code == 0);
  write_file(f / "g.svg", "mine");
  CHECK(lathe_in(f, {"gradients", "runs/tiny", "--svg", "g.svg"}).code == 2);
  CHECK(slurp(f / "g.svg") == "mine");
  const Finished text = lathe_in(
      f, {"gradients", "runs/tiny", "--svg", "g.svg", "--batches=2", "--threads=1", "--force"});
  REQUIRE(text.code == 0);
  CHECK_THAT(text.out, ContainsSubstring("float16 at loss scale 1024"));
  CHECK_THAT(slurp(f / "g.svg"), ContainsSubstring("</svg>"));

  LoadedModel m = LoadedModel::open(f / "runs/tiny", "cpu", 1, "", false);
  m.config.data.dir = (f / "data").string();
  const GradientExponents e = gradient_exponents(m, 2);
  double total = e.zeros;
  for (const double share : e.activations) total += share;
  CHECK(total == Approx(1).epsilon(1e-9));
  REQUIRE(e.passes.size() == 4);
  CHECK(e.passes[0].zeros > e.passes[2].zeros);
  CHECK(e.passes[2].zeros >= e.passes[3].zeros);
  CHECK(!e.passes[3].overflow);
  CHECK(e.passes[3].scale > 1024);
}

}  // namespace
