// Compares optimizers in float32 with torch.optim, and bfloat16 parameters with a float64 reference
// that is rounded after each step. Also tests gradients that a step must refuse.
#include "autograd/node.h"
#include "core/dtype.h"
#include "optim/optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;

constexpr int lowp_steps = 25;
constexpr int64_t elements = 1024;

/// One configuration of an optimizer, in Lathe and in torch.
struct LowPrecisionKind {
  std::string label;
  OptimConfig config;
  std::function<std::unique_ptr<torch::optim::Optimizer>(at::Tensor&)> torch;
};

template <class Optim, class Options>
std::function<std::unique_ptr<torch::optim::Optimizer>(at::Tensor&)> like(Options options) {
  return [options](at::Tensor& p) {
    return std::make_unique<Optim>(std::vector<at::Tensor>{p}, options);
  };
}

/// Returns configurations of the kinds that torch.optim also has, with and without weight decay.
std::vector<LowPrecisionKind> low_precision_kinds() {
  std::vector<LowPrecisionKind> all;
  for (const double wd : {0.0, 0.1}) {
    OptimConfig base;
    base.weight_decay = wd;
    base.grad_clip = 0;
    const std::string decay = wd > 0 ? ", weight decay" : "";
    const auto add = [&](const std::string& label, OptimConfig c, auto torch) {
      all.push_back({.label = c.kind + label + decay, .config = c, .torch = std::move(torch)});
    };

    OptimConfig c = base;
    c.kind = "sgd";
    add("", c, like<torch::optim::SGD>(torch::optim::SGDOptions(1).weight_decay(wd)));

    c.kind = "momentum";
    for (const auto& [dampening, nesterov] :
         {std::pair{0.0, false}, std::pair{0.1, false}, std::pair{0.0, true}}) {
      c.momentum = 0.9;
      c.dampening = dampening;
      c.nesterov = nesterov;
      add(nesterov        ? ", Nesterov"
          : dampening > 0 ? ", dampening"
                          : "",
          c,
          like<torch::optim::SGD>(torch::optim::SGDOptions(1)
                                      .momentum(0.9)
                                      .dampening(dampening)
                                      .nesterov(nesterov)
                                      .weight_decay(wd)));
    }

    c = base;
    c.kind = "adagrad";
    c.lr_decay = 0.1;
    c.initial_accumulator = 0.5;
    c.eps = 1e-10;
    add("", c,
        like<torch::optim::Adagrad>(torch::optim::AdagradOptions(1)
                                        .lr_decay(0.1)
                                        .initial_accumulator_value(0.5)
                                        .eps(1e-10)
                                        .weight_decay(wd)));

    c = base;
    c.kind = "rmsprop";
    for (const double momentum : {0.0, 0.9}) {
      for (const bool centered : {false, true}) {
        c.momentum = momentum;
        c.centered = centered;
        c.alpha = 0.95;
        c.eps = 1e-8;
        add(str(momentum > 0 ? ", momentum" : "", centered ? ", centered" : ""), c,
            like<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1)
                                            .alpha(0.95)
                                            .eps(1e-8)
                                            .momentum(momentum)
                                            .centered(centered)
                                            .weight_decay(wd)));
      }
    }

    c = base;
    c.beta1 = 0.85;
    c.beta2 = 0.97;
    c.eps = 1e-8;
    c.kind = "adam";
    add("", c,
        like<torch::optim::Adam>(
            torch::optim::AdamOptions(1).betas({0.85, 0.97}).eps(1e-8).weight_decay(wd)));
    c.kind = "adamw";
    add("", c,
        like<torch::optim::AdamW>(
            torch::optim::AdamWOptions(1).betas({0.85, 0.97}).eps(1e-8).weight_decay(wd)));
  }
  return all;
}

double lowp_rate(int step) { return 0.05 / (1 + 0.1 * step); }

/// Returns the gradient of a step, which is the same for Lathe and torch. It has magnitudes from
/// 1/4 to 2 and random signs.
at::Tensor gradient(int step) {
  torch::manual_seed(static_cast<uint64_t>(step) + 100);
  const at::Tensor size = torch::rand({2, elements / 2}) * 1.75 + 0.25;
  return torch::where(torch::rand({2, elements / 2}).gt(0.5), size, -size);
}

at::Tensor start() {
  torch::manual_seed(99);
  return torch::randn({2, elements / 2});
}

/// Returns Lathe's parameter after the steps. The parameter and the gradients have the dtype
/// `dtype`.
at::Tensor lowp_ours(const OptimConfig& config, at::ScalarType dtype,
                     std::optional<uint64_t> rounding_seed = std::nullopt) {
  const Variable p = Variable::parameter(start().to(dtype, false, /*copy=*/true));
  Optimizer optimizer(config, {{"w", p, Role::weight}}, rounding_seed);
  for (int step = 0; step < lowp_steps; ++step) {
    p.leaf().grad = gradient(step).to(dtype);
    optimizer.step(lowp_rate(step));
  }
  return p.data();
}

/// Returns torch's parameter after the steps, computed in `dtype`. The parameter and each gradient
/// are rounded to `kept`.
at::Tensor torchs(const LowPrecisionKind& kind, at::ScalarType dtype, at::ScalarType kept) {
  at::Tensor p = start().to(kept).to(dtype, false, /*copy=*/true).requires_grad_();
  const auto optimizer = kind.torch(p);
  for (int step = 0; step < lowp_steps; ++step) {
    p.mutable_grad() = gradient(step).to(kept).to(dtype);
    for (auto& group : optimizer->param_groups()) group.options().set_lr(lowp_rate(step));
    optimizer->step();
    const torch::NoGradGuard no_grad;
    p.copy_(p.to(kept));
  }
  return p.detach();
}

TEST_CASE("optimizers agree with those of torch.optim in float32", "[optimizer_precision]") {
  for (const auto& kind : low_precision_kinds()) {
    const at::Tensor a = lowp_ours(kind.config, at::kFloat),
                     b = torchs(kind, at::kFloat, at::kFloat);
    const at::Tensor moved = (b - start()).abs();
    // In each step, Lathe and torch both round the parameter once, and its update about 8 times
    // (the decayed gradient, two averages, root, quotient, product). An update is at most as large
    // as the larger of 1 and the parameter's change so far.
    const at::Tensor spacing = torch::maximum(b.abs(), moved).clamp_min(1) * 0x1p-23;
    const double off = ((a - b).abs() / spacing).max().item<double>();
    INFO(kind.label << ": off by " << off << " units of the last place after " << lowp_steps
                    << " steps");
    CHECK(off <= 4 * lowp_steps);
    CHECK(moved.max().item<double>() > 0.01);  // the parameters have changed
  }
}

TEST_CASE("bfloat16 parameters rounded to nearest agree with a float64 run rounded after each step",
          "[optimizer_precision]") {
  for (const auto& kind : low_precision_kinds()) {
    const at::Tensor wanted = torchs(kind, at::kDouble, at::kBFloat16);
    const auto compare = [&](std::optional<uint64_t> rounding_seed) {
      const at::Tensor a = lowp_ours(kind.config, at::kBFloat16, rounding_seed).to(at::kDouble);
      const at::Tensor off = (a - wanted).abs() / (wanted.abs().clamp_min(0x1p-6) * 0x1p-7);
      return std::pair(off.gt(0).to(at::kDouble).mean().item<double>(), off.max().item<double>());
    };
    // Float32 errors of updates are small compared to bfloat16's relative spacing of up to 2^-7, so
    // about one rounding in 10^4 differs. These are a few of 25 * 1024 roundings, and each differs
    // by one spacing. A later step may undo such a difference, or double it at another exponent or
    // by the feedback of weight decay.
    const auto [share, most] = compare(std::nullopt);
    INFO(kind.label << ": " << 100 * share << "% of elements differ, by up to " << most
                    << " spacings");
    CHECK(share < 0.01);
    CHECK(most <= 2);
    CHECK(compare(7).first > 0.1);  // stochastic rounding gives other values
  }
}

TEST_CASE("centered RMSprop stays finite if rounding makes its variance estimate negative",
          "[optimizer_precision]") {
  for (const double momentum : {0.0, 0.9}) {
    OptimConfig c;
    c.kind = "rmsprop";
    c.centered = true;
    c.momentum = momentum;
    c.weight_decay = 0;
    c.grad_clip = 0;
    const Variable p = Variable::parameter(torch::zeros({elements}));
    Optimizer optimizer(c, {{"w", p, Role::weight}});

    torch::manual_seed(1);
    // If a gradient decreases and then stays constant, the mean of squares and the mean converge
    // from above and stop a few spacings early. The square of the mean may then exceed the mean of
    // squares, so that their difference is negative.
    const at::Tensor constant = torch::randn({elements}), other = torch::randn({elements});
    for (int step = 0; step < 3000; ++step) {
      p.leaf().grad = step < 200    ? constant * 4
                      : step < 2900 ? constant.clone()
                                    : other * (1 + step % 3);
      optimizer.step(1e-3);
    }

    INFO((momentum > 0 ? "momentum: " : "")
         << p.data().isfinite().logical_not().sum().item<int64_t>() << " of " << elements
         << " elements are not finite");
    CHECK(p.data().isfinite().all().item<bool>());
    for (const auto& state : optimizer.groups()[1].slots[0].state)
      CHECK(state.isfinite().all().item<bool>());
  }
}

/// Returns the error of a step in which the parameter "blocks.0.up.weight" [2, 3] has the gradient
/// `gradient`, or "" if the step succeeds. Checks that an error changes no parameter.
std::string refusal(const at::Tensor& gradient) {
  OptimConfig c;
  std::vector<NamedParameter> p{
      {"tokens.weight", Variable::parameter(torch::ones({4})), Role::bias},
      {"blocks.0.up.weight", Variable::parameter(torch::ones({2, 3})), Role::weight}};
  Optimizer optimizer(c, p);
  p[0].parameter.leaf().grad = torch::ones({4});
  p[1].parameter.leaf().grad = gradient;
  std::string refusal;
  try {
    refusal = error_of([&] { optimizer.step(0.1); });
  } catch (const std::exception& e) {
    refusal = str("not Lathe's own error: ", e.what());
  }
  if (!refusal.empty()) {
    for (const auto& q : p) CHECK(q.parameter.data().eq(1).all().item<bool>());
  }
  return refusal;
}

TEST_CASE("the error of a gradient of another shape names its parameter", "[optimizer_precision]") {
  CHECK(refusal(torch::ones({2, 3})).empty());  // accepted
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{6}, {3, 2}, {2, 2}, {2, 4}, {1}}) {
    INFO(describe(at::IntArrayRef(sizes)));
    CHECK_THAT(refusal(torch::ones(sizes)), ContainsSubstring("blocks.0.up.weight"));
  }
}

TEST_CASE("the error of an integer gradient names its parameter", "[optimizer_precision]") {
  for (const auto dtype : {at::kHalf, at::kBFloat16})
    CHECK(refusal(torch::ones({2, 3}, dtype)).empty());
  for (const auto dtype : {at::kLong, at::kInt, at::kByte, at::kBool}) {
    INFO(dtype_name(dtype));
    CHECK_THAT(refusal(torch::ones({2, 3}, dtype)), ContainsSubstring("blocks.0.up.weight"));
  }
}

TEST_CASE("the error of a gradient without elements or on another device names its parameter",
          "[optimizer_precision]") {
  CHECK_THAT(refusal(torch::ones({0})), ContainsSubstring("blocks.0.up.weight"));
  CHECK_THAT(refusal(torch::ones({2, 3}, at::TensorOptions(at::kMeta).dtype(at::kFloat))),
             ContainsSubstring("blocks.0.up.weight"));
}

}  // namespace
