// Tests that need a GPU, and are skipped if there is none. A GPU's results must agree with the
// CPU's, and must be bitwise equal each time. The op table and the runs of other tests also use a
// GPU if there is one.

#include "tests/support/gpu.h"
#include "amp/amp.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "autograd/packing.h"
#include "autograd/pinned_activations.h"
#include "autograd/recompute.h"
#include "core/device.h"
#include "optim/method.h"
#include "tests/dist/ranks.h"
#include "tests/optim/optimizer_table.h"
#include "tests/support/kinds.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("a run of each kind on a GPU has the CPU's losses, and resumes a CPU's checkpoint",
          "[gpu]") {
  if (skip_without_gpu()) return;
  const TempFolder f(fast_folder());
  make_data(f);
  std::vector<Kind> all = kinds;
  all.push_back(
      {"gpt", "text", "n_layer = 2\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"});

  for (const Kind& kind : all) {
    INFO(kind.name << " on " << kind.data);
    write_config(f, kind);

    const auto losses = [&](const std::string& out, std::vector<std::string> more) {
      fs::remove_all(f / out);
      more.insert(more.begin(),
                  {"train", "kind.toml", "--train.out_dir=" + out, "--train.steps=20"});
      const Finished done = lathe_in(f, more);
      INFO(done.out << done.err);
      REQUIRE(done.code == 0);
      std::vector<double> all_losses;
      std::istringstream lines(slurp(f / out / "metrics.jsonl"));
      for (std::string line; std::getline(lines, line);) {
        const Json row = parse_json(line, "metrics", Exit::internal);
        if (row.contains("loss")) all_losses.push_back(row["loss"].get<double>());
      }
      REQUIRE(all_losses.size() >= 20);
      return all_losses;
    };

    const auto apart = [](const std::vector<double>& a, const std::vector<double>& b) {
      double most = 0;
      for (size_t i = 0; i < a.size(); ++i)
        most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
      return most;
    };

    const auto gpu = losses("gpu", {"--train.device=cuda"}),
               cpu = losses("cpu", {"--train.device=cpu"});
    // Rounding errors of float32 products and sums grow over 20 steps of AdamW. Dropout masks are
    // the same.
    CHECK(apart(gpu, cpu) < 2e-3);
    CHECK(apart(losses("other", {"--train.device=cpu", "--train.seed=2"}), cpu) >
          1e-2);  // a wrong seed must be noticed
    CHECK(apart(gpu, losses("again", {"--train.device=cuda"})) == 0);

    // A GPU resumes the CPU's checkpoint, and the CPU evaluates the result.
    CHECK(lathe_in(f, {"train", "kind.toml", "--train.out_dir=cpu", "--train.device=cuda"}).code ==
          0);
    CHECK(lathe_in(f, {"eval", "cpu", "--device=cpu"}).code == 0);
  }
}

TEST_CASE("the keys of [memory], except memory.saved, change no bits of a run on a GPU", "[gpu]") {
  if (skip_without_gpu()) return;
  const TempFolder f(fast_folder());
  make_data(f);
  write_config(
      f, {"gpt", "text", "n_layer = 3\nn_head = 2\nn_embd = 32\nblock_size = 12\ndropout = 0.1\n"});

  int runs = 0;
  const auto weights = [&](std::vector<std::string> more) {
    const std::string out = "run" + std::to_string(runs++);
    more.insert(more.begin(),
                {"train", "kind.toml", "--train.out_dir=" + out, "--train.steps=6",
                 "--train.grad_accum=1", "--checkpoint.interval=6", "--train.device=cuda"});
    const Finished done = lathe_in(f, more);
    INFO(done.out << done.err);
    REQUIRE(done.code == 0);
    return results_of(f / out, "step-00000006");
  };

  for (const std::vector<std::string>& base : std::vector<std::vector<std::string>>{
           {"--optim.grad_clip=0"}, {"--amp.dtype=bf16", "--optim.grad_clip=0.5"}}) {
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), base.begin(), base.end());
      return weights(more);
    };

    const std::string plain = with({});
    CHECK(with({"--memory.update_in_backward=true"}) == plain);
    CHECK(with({"--memory.recompute=selective"}) == plain);
    CHECK(with({"--memory.saved=fp8"}) != plain);
    CHECK(with({"--optim.kind=adam8bit", "--memory.update_in_backward=true"}) ==
          with({"--optim.kind=adam8bit"}));
  }
}

TEST_CASE("activations in host memory are restored for the backward pass on a GPU", "[gpu]") {
  if (skip_without_gpu()) return;
  torch::manual_seed(7);
  const at::Tensor x = torch::randn({512, 256}).cuda(), weight = torch::randn({256, 256}).cuda();
  const auto gradient = [&](PinnedOffloader* offload, bool recomputes) {
    const Variable w = Variable::parameter(weight * 0.05);
    std::optional<OffloadActivations> guard;
    if (offload != nullptr) guard.emplace(*offload);
    Variable y = Variable(x) + linear(Variable(x), w);
    for (int i = 0; i < 12; ++i) {
      const auto block = [w](const Variable& in) { return in + gelu(linear(tanh(in), w)); };
      y = recomputes ? recompute(block, y) : block(y);
    }
    const Variable kept = tanh(y), loss = sum(kept * kept);
    backward(loss);
    return w.grad().cpu();
  };

  for (const bool recomputes : {false, true}) {
    const at::Tensor wanted = gradient(nullptr, recomputes);
    // With these windows, the GPU keeps the three latest activations, then a few more, then all.
    // Each activation is copied to the host in any case.
    for (const size_t window : {size_t{0}, size_t{4} << 20, size_t{1} << 30}) {
      PinnedOffloader offload(window, /*least=*/1);
      CHECK(gradient(&offload, recomputes).equal(wanted));
      CHECK(gradient(&offload, recomputes).equal(wanted));
      CHECK(offload.times().bytes > 0);

      // Records of freed activations are removed when the next activation is packed.
      const at::Tensor more = torch::ones({4}).cuda();
      const auto kept = offload.pack(more);
      CHECK(offload.remembered() == 1);
    }
  }

  // An in-place change of a saved tensor before the backward pass is detected.
  PinnedOffloader offload(0, 1);
  const Variable v = Variable::parameter(x.clone());
  std::optional<OffloadActivations> guard(std::in_place, offload);
  const Variable y = v * 2.0, loss = sum(y * y);
  y.data().zero_();
  guard.reset();
  CHECK_THROWS_WITH(backward(loss), ContainsSubstring("in place"));
}

TEST_CASE("packed activations give nearly the same gradients on a GPU as on a CPU", "[gpu]") {
  if (skip_without_gpu()) return;
  torch::manual_seed(6);
  const at::Tensor x = torch::randn({64, 96}), weight = torch::randn({96, 96});
  const auto gradient = [&](at::DeviceType device, std::optional<Packing> packing) {
    const Variable w = Variable::parameter(weight.to(device)), constant(x.to(device));
    Variable loss;
    {
      const auto guard = packing ? std::make_unique<PackSaved>(*packing) : nullptr;
      const Variable y = gelu(linear(gelu(linear(constant, w)), w));
      loss = sum(y * y);
    }
    backward(loss);
    return w.grad().cpu();
  };
  const at::Tensor exact = gradient(at::kCPU, std::nullopt);
  for (const Packing packing : {Packing::bf16, Packing::fp8}) {
    const at::Tensor cpu = gradient(at::kCPU, packing), gpu = gradient(at::kCUDA, packing);
    CHECK(distance(gpu, cpu) < 0.2 * distance(cpu, exact));
  }
}

TEST_CASE("casts of weights are not packed as activations on a GPU", "[gpu]") {
  if (skip_without_gpu()) return;
  torch::manual_seed(8);
  const Variable x = Variable::parameter(torch::randn({64, 96}).cuda()),
                 w = Variable::parameter(torch::randn({96, 96}).cuda());
  const auto gradients = [&](bool packs) {
    const Autocast autocast(at::kBFloat16);
    const auto guard = packs ? std::make_unique<PackSaved>(Packing::fp8) : nullptr;
    const Variable y = linear(x * 1.0, w);
    return grad(sum(y), {x, w});
  };
  const auto packed = gradients(true), exact = gradients(false);
  CHECK(packed[0].data().equal(exact[0].data()));   // x's gradient depends only on the weight
  CHECK(!packed[1].data().equal(exact[1].data()));  // w's gradient depends on the activation
}

TEST_CASE("every optimizer has the CPU's results on a GPU, or reports that it has no GPU code",
          "[gpu]") {
  if (skip_without_gpu()) return;
  for (const Row& row : optimizer_rows()) {
    INFO(row.kind << " " << row.label);
    OptimConfig config;
    config.kind = row.kind;
    config.beta1 = 0.85;
    config.beta2 = 0.97;
    config.weight_decay = 0.1;
    config.grad_clip = 1;
    config.ema_decay = 0.9;
    row.set(config);

    const auto trained = [&](at::DeviceType device) {
      torch::manual_seed(7);
      std::vector<NamedParameter> all;
      for (const auto& sizes :
           std::vector<std::vector<int64_t>>{{}, {517}, {131, 67}, {3, 5}, {40, 200}}) {
        const Role role = sizes.size() > 1 ? Role::weight : Role::bias;
        all.push_back({.path = "p" + std::to_string(all.size()),
                       .parameter = Variable::parameter(torch::randn(sizes).to(device)),
                       .role = role});
      }

      Optimizer optimizer(config, all);
      for (int step = 0; step < 10; ++step) {
        for (const auto& p : all)
          p.parameter.leaf().grad = torch::randn(p.parameter.sizes()).to(device);
        optimizer.step(config.lr);
      }
      std::vector<at::Tensor> flat;
      for (const auto& p : all) flat.push_back(p.parameter.data().reshape({-1}).cpu());
      return at::cat(flat);
    };

    if (!make_method(config)->runs_on_gpu()) {
      CHECK_THROWS_WITH(trained(at::kCUDA),
                        ContainsSubstring(row.kind) && ContainsSubstring("GPU"));
      continue;
    }

    // Lion's sign and 8-bit levels may differ where rounding decides.
    const at::Tensor cpu = trained(at::kCPU),
                     far = (trained(at::kCUDA) - cpu).abs().gt(3e-5 * cpu.abs().clamp_min(1));
    const bool eight = row.kind.ends_with("8bit");
    CHECK(far.sum().item<int64_t>() <= (eight ? far.numel() / 1000 : row.kind == "lion" ? 2 : 0));
    config.lr *= 1.1;
    CHECK(distance(trained(at::kCPU), cpu) > 3e-5);  // another lr must be noticed
  }
}

TEST_CASE("linear_cross_entropy on a GPU, in several pieces, agrees with ATen", "[gpu]") {
  if (skip_without_gpu()) return;
  torch::manual_seed(3);
  constexpr int64_t n = 6000, c = 16, v = 50257;  // 600 MB of logits in 16 bits
  const at::Tensor x = torch::randn({n, c}), w = torch::randn({v, c}) * 0.3;
  at::Tensor targets = torch::randint(v, {n}, at::kLong);
  targets.slice(0, 10, 500).fill_(-100);

  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    INFO(at::toString(dtype));
    const Variable vx = Variable::parameter(x.to(at::kCUDA, dtype)),
                   vw = Variable::parameter(w.to(at::kCUDA, dtype));
    const Variable loss = linear_cross_entropy(vx, vw, targets.cuda(), 0, -100);
    backward(loss * 3.0);

    const at::Tensor tx = x.to(at::kCUDA, dtype).to(at::kFloat).requires_grad_(),
                     tw = w.to(at::kCUDA, dtype).to(at::kFloat).requires_grad_();
    const at::Tensor wanted =
        torch::cross_entropy_loss(tx.matmul(tw.t()), targets.cuda(), {}, at::Reduction::Mean, -100);
    (wanted * 3).backward();

    // Logits and their gradients are stored in `dtype`, so the tolerance depends on it.
    const double unit = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
    const auto share = [](const at::Tensor& a, const at::Tensor& b) {
      return ((a.to(at::kFloat) - b).norm() / b.norm()).item<double>();
    };

    CHECK(std::abs(loss.data().item<double>() / wanted.item<double>() - 1) < unit);
    CHECK(share(vx.grad(), tx.grad()) < unit);
    CHECK(share(vw.grad(), tw.grad()) < unit);
    CHECK(share(vw.grad() * 1.02, tw.grad()) > unit);  // 2% must be noticed
  }
}

TEST_CASE("GPU kernels accept unaligned views and refuse CPU tensors", "[gpu]") {
  if (skip_without_gpu()) return;
  torch::manual_seed(5);
  const at::Tensor flat = torch::randn({4 * 64 + 1});
  const at::Tensor aside = flat.cuda().slice(0, 1).view({4, 64}), weight = torch::rand({64});
  const auto run = [&](const at::Tensor& x, const at::Tensor& w) {
    const Variable v = Variable::parameter(x), p = Variable::parameter(w);
    backward(gelu(layer_norm(v, p, p)), at::ones_like(x));
    return v.grad();
  };
  CHECK(distance(run(aside, weight.cuda()), run(flat.slice(0, 1).view({4, 64}), weight)) < 1e-5);
  CHECK_THROWS_WITH(run(aside, weight), ContainsSubstring("x is on cuda:0"));
  const Variable x = Variable::parameter(aside),
                 w = Variable::parameter(torch::randn({8, 64}).cuda());
  CHECK_THROWS_WITH(linear_cross_entropy(x, w, torch::zeros({4}, at::kLong), 0, -100),
                    ContainsSubstring("x is on cuda:0"));
}

TEST_CASE(
    "attention's gradients on a GPU do not depend on other samples, even if heads do not fill the "
    "last round of multiprocessors",
    "[gpu]") {
  if (skip_without_gpu()) return;
  torch::manual_seed(4);
  const int64_t heads = 6, batch = cuda_api().multiprocessors() / heads + 2, t = 200, width = 32;
  const at::Tensor packed = torch::randn({batch, t, 3 * heads * width}),
                   dy = torch::randn({batch, t, heads * width});
  const auto gradient = [&](const at::Tensor& q, const at::Tensor& d) {
    const Variable x = Variable::parameter(q.to(at::kCUDA, at::kBFloat16));
    backward(attention(x, heads), d.to(at::kCUDA, at::kBFloat16));
    return x.grad().to(at::kCPU, at::kFloat);
  };
  const at::Tensor all = gradient(packed, dy);
  CHECK(all.equal(gradient(packed, dy)));
  for (const int64_t sample : {int64_t{0}, batch - 1}) {
    const at::Tensor alone = gradient(packed.narrow(0, sample, 1), dy.narrow(0, sample, 1));
    CHECK(distance(all[sample], alone[0]) < 0x1p-7);
    CHECK(distance(all[sample], gradient(packed.narrow(0, 1, 1), dy.narrow(0, 1, 1))[0]) >
          0x1p-7);  // another sample must be noticed
  }
}

}  // namespace
