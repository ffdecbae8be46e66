// Compares every optimizer with torch::optim, or with the formula of its paper in float64
// (tests/optim/optimizer_table.cc), over many steps, shapes and options. Also tests behavior that
// all optimizers share.
#include <ATen/Parallel.h>

#include "autograd/node.h"
#include "core/kernels/adam8bit.h"
#include "core/kernels/gemm.h"
#include "optim/method.h"
#include "tests/optim/optimizer_table.h"

namespace {

using namespace lathe;
using namespace lathe::test;

struct Shape {
  std::vector<int64_t> sizes;
  Role role;
};
/// Returns the shapes of parameters: 0-dim, empty, odd and large shapes, wide and tall matrices,
/// filters, and matrices that do not belong to hidden layers.
std::vector<Shape> shapes() {
  return {{{}, Role::scale},
          {{0}, Role::bias},
          {{0, 3}, Role::weight},
          {{1}, Role::bias},
          {{517}, Role::bias},
          {{3, 5}, Role::weight},
          {{5, 3}, Role::weight},
          {{4, 3, 3, 3}, Role::filter},
          {{131, 67}, Role::weight},
          {{40, 200}, Role::weight},
          {{67, 131}, Role::embedding},
          {{70, 9}, Role::head}};
}

constexpr int rule_steps = 20;
double rate_at(int step) { return 0.05 / (1 + 0.1 * step); }
at::Tensor gradient(int step, at::IntArrayRef sizes) {
  torch::manual_seed(static_cast<uint64_t>(step) + 100);
  const at::Tensor draw = torch::randn(sizes, at::kDouble);
  return draw * (1 + 0.5 * std::sin(0.9 * step));
}

OptimConfig config_of(const Row& row) {
  OptimConfig c;
  c.kind = row.kind;
  c.beta1 = 0.85;
  c.beta2 = 0.97;
  c.grad_clip = 0;
  c.weight_decay = 0.1;
  row.set(c);
  return c;
}
std::vector<NamedParameter> start(at::ScalarType dtype) {
  std::vector<NamedParameter> all;
  torch::manual_seed(7);
  for (const Shape& shape : shapes()) {
    all.push_back(
        {.path = "p" + std::to_string(all.size()),
         .parameter = Variable::parameter(torch::randn(shape.sizes, at::kDouble).to(dtype)),
         .role = shape.role});
  }
  return all;
}
double decay_of(const NamedParameter& p, const OptimConfig& c) {
  return p.parameter.dim() >= 2 ? c.weight_decay : 0;
}

/// Returns Lathe's parameters after the steps.
std::vector<at::Tensor> ours_after(const OptimConfig& c, at::ScalarType dtype) {
  const auto params = start(dtype);
  Optimizer optimizer(c, params);
  for (int step = 0; step < rule_steps; ++step) {
    for (const auto& p : params)
      p.parameter.leaf().grad = gradient(step, p.parameter.sizes()).to(dtype);
    optimizer.step(rate_at(step) * c.lr / 1e-3);
  }
  std::vector<at::Tensor> all;
  for (const auto& p : params) all.push_back(p.parameter.data().to(at::kDouble));
  return all;
}
/// Returns the reference's parameters after the steps, in float64.
std::vector<at::Tensor> theirs(const Row& row, at::ScalarType gradients = at::kDouble) {
  const OptimConfig c = config_of(row);
  std::vector<at::Tensor> all;
  for (const auto& named : start(at::kFloat)) {
    at::Tensor p = named.parameter.data().to(at::kDouble);
    if (gradients == at::kDouble) p = start(at::kDouble)[all.size()].parameter.data();
    const auto draw = [&](int step) {
      return gradient(step, p.sizes()).to(gradients).to(at::kDouble);
    };
    Step k{.c = c, .lr = rate_at(0), .wd = decay_of(named, c), .t = 1, .role = named.role};

    // The oracle is an optimizer of torch if the row has one, and the row's formula otherwise.
    if (row.torch) {
      p = p.clone().requires_grad_();
      const auto optimizer = row.torch(p, k);
      for (int step = 0; step < rule_steps; ++step) {
        p.mutable_grad() = draw(step);
        for (auto& group : optimizer->param_groups()) group.options().set_lr(rate_at(step));
        optimizer->step();
      }
    } else {
      State state;
      for (int step = 0; step < rule_steps; ++step) {
        k.lr = rate_at(step);
        k.t = step + 1;
        p = row.formula(p, draw(step), state, k);
      }
    }

    all.push_back(p.detach());
  }
  return all;
}

/// Returns the share of elements that differ by more than `tolerance`, relative to 1 or to the
/// element if that is larger.
double share_apart(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                   double tolerance) {
  double apart = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += static_cast<double>((a[i] - b[i])
                                     .abs()
                                     .gt(tolerance * b[i].abs().clamp_min(1))
                                     .logical_or(a[i].isnan())
                                     .sum()
                                     .item<int64_t>());
    all += static_cast<double>(a[i].numel());
  }
  return apart / all;
}

TEST_CASE("every optimizer has its row, and every row an optimizer", "[optimizer_table]") {
  std::set<std::string> in_table, in_registry;
  for (const Row& row : optimizer_rows()) in_table.insert(row.kind);
  for (const std::string& name : optimizer_names()) in_registry.insert(name);
  CHECK(in_table == in_registry);
}

TEST_CASE("every optimizer agrees with its formula in float64", "[optimizer_table]") {
  for (const Row& row : optimizer_rows()) {
    INFO(row.kind << " " << row.label);
    const auto wanted = theirs(row);
    // The tolerance covers the float64 rounding of 20 steps. Muon's singular values and products
    // lose a few more digits. With 8 bits, Lathe's scale is float32 and the reference's scale is
    // float64, so a moment halfway between two levels may be rounded to either level.
    const bool eight = row.kind.ends_with("8bit");
    const double tolerance = eight ? 1e-6 : row.kind == "muon" ? 1e-9 : 1e-12;
    CHECK(share_apart(ours_after(config_of(row), at::kDouble), wanted, tolerance) <=
          (eight ? 1e-3 : 0));
    OptimConfig wrong = config_of(row);
    row.wrong(wrong);
    CHECK(share_apart(ours_after(wrong, at::kDouble), wanted, tolerance) > 0.1);  // must differ
  }
}

TEST_CASE("every optimizer agrees with its formula in float32", "[optimizer_table]") {
  for (const Row& row : optimizer_rows()) {
    INFO(row.kind << " " << row.label);
    const bool eight = row.kind.ends_with("8bit"), muon = row.kind == "muon",
               lion = row.kind == "lion";
    // The tolerance covers 20 steps of up to 0.05, each rounded some 8 times in float32: 20 * 8 *
    // 2^-24 for values near 1. RMSprop's deviation loses more precision. So does Newton-Schulz,
    // where a small singular value and its error grow by 3.4 per iteration. Lion's sign and a level
    // in 8 bits may differ in close cases.
    const double tolerance = muon || row.kind == "rmsprop" ? 5e-3 : 3e-5;
    CHECK(share_apart(ours_after(config_of(row), at::kFloat), theirs(row, at::kFloat), tolerance) <=
          (eight  ? 5e-3
           : lion ? 1e-3
                  : 0));
  }
}

/// Makes optimizers update complete tensors with ATen's ops, as on GPUs, until destroyed.
struct ByTensors {
  ByTensors() { use_kernels(false); }
  ~ByTensors() { use_kernels(true); }
};

bool needs_whole_tensors(const OptimConfig& c) {
  const NamedParameter matrix{"w", Variable::parameter(torch::zeros({70, 90})), Role::weight};
  const MethodState state = make_method(c)->state(matrix);
  return state.whole || !state.divisible;
}

TEST_CASE("optimizers that need complete tensors agree with their implementation by ATen's ops",
          "[optimizer_table]") {
  int tested = 0;
  for (const Row& row : optimizer_rows()) {
    for (const char* clip_by : {"", "norm", "parameter", "value"}) {
      OptimConfig c = config_of(row);
      if (!needs_whole_tensors(c)) continue;
      INFO(row.kind << " " << row.label << " " << clip_by);
      ++tested;
      if (*clip_by != '\0') {
        c.grad_clip = 0.3;
        c.grad_clip_by = clip_by;
      }

      // Both implementations compute the same formula, but with sums in another order and norms in
      // float32. The tests above explain the tolerances.
      const bool eight = row.kind.ends_with("8bit");
      for (const auto dtype : {at::kDouble, at::kFloat}) {
        const auto kernels = ours_after(c, dtype);
        std::vector<at::Tensor> tensors;
        {
          const ByTensors guard;
          tensors = ours_after(c, dtype);
        }
        const double tolerance = dtype == at::kFloat ? (row.kind == "muon" ? 5e-3 : 3e-5)
                                 : eight             ? 1e-6
                                                     : 1e-9;
        CHECK(share_apart(tensors, kernels, tolerance) <= (eight ? 5e-3 : 0));
        c.lr *= 1.1;
        CHECK(share_apart(ours_after(c, dtype), tensors, tolerance) > 0.1);  // another lr differs
        c.lr /= 1.1;
      }
    }
  }
  CHECK(tested >= 4 * 5);
}

TEST_CASE("a skipped step changes nothing in the implementation by ATen's ops",
          "[optimizer_table]") {
  // On a GPU, the device decides whether to skip a step, so the host always calls the optimizer's
  // method.
  for (const Row& row : optimizer_rows()) {
    const OptimConfig c = config_of(row);
    if (!needs_whole_tensors(c)) continue;
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{70, 90}, {517}}) {
      INFO(row.kind << " " << row.label << " " << sizes.size());
      torch::manual_seed(11);
      const at::Tensor p = torch::randn(sizes), g = torch::randn(sizes);
      const auto method = make_method(c);
      const NamedParameter named{"w", Variable::parameter(p), Role::weight};
      const MethodState state = method->state(named);

      // A skipped step must leave the parameter and its state as they are.
      std::vector<at::Tensor> all{p};
      UpdateArgs args;
      args.param = p.mutable_data_ptr();
      args.grad = g.const_data_ptr();
      args.n = p.numel();
      for (const StateTensor& t : state.tensors) {
        all.push_back(torch::ones(t.sizes, t.dtype));
        args.state[t.place] = all.back().mutable_data_ptr();
      }

      const auto changed = [&](StepControl control) {
        std::vector<at::Tensor> before;
        for (const at::Tensor& t : all) before.push_back(t.clone());
        UpdateRule rule = method->rule();
        rule.lr = 0.1;
        std::vector<SlotUpdate> slots{{.args = args, .sizes = p.sizes(), .whole = state.whole}};
        const ByTensors guard;
        method->update(slots, rule, &control, /*cuda=*/false);
        int n = 0;
        for (size_t i = 0; i < all.size(); ++i) n += all[i].equal(before[i]) ? 0 : 1;
        return n;
      };

      CHECK(changed({.updates = 3, .skip = 1, .correction1 = 0.3, .correction2 = 0.5}) == 0);
      CHECK(changed({.updates = 3, .skip = 0, .correction1 = 0.3, .correction2 = 0.5}) ==
            static_cast<int>(all.size()));
    }
  }
}

TEST_CASE("8-bit Adam keeps moments in 8 bits if a tensor has at least 4096 elements",
          "[optimizer_table]") {
  for (const char* kind : {"adam8bit", "adamw8bit"}) {
    for (const int64_t n : {4095, 4096}) {
      INFO(kind << " " << n);
      OptimConfig c;
      c.kind = kind;
      std::vector<NamedParameter> p{{"w", Variable::parameter(torch::ones({1, n})), Role::weight}};
      Optimizer optimizer(c, p);
      p[0].parameter.leaf().grad = torch::ones({1, n});
      optimizer.step(0.05);
      const Slot& slot = optimizer.groups()[0].slots[0];
      CHECK(slot.state.at(0).scalar_type() == (n < 4096 ? at::kFloat : at::kByte));
      CHECK(slot.state.at(1).scalar_type() == (n < 4096 ? at::kFloat : at::kByte));
      CHECK(slot.state.size() == (n < 4096 ? 2 : 4));  // 8-bit moments have scales
    }
  }
}

TEST_CASE("every optimizer gives the same bits on any number of threads", "[optimizer_table]") {
  const int before = at::get_num_threads();
  for (const Row& row : optimizer_rows()) {
    INFO(row.kind << " " << row.label);
    std::vector<std::vector<at::Tensor>> results;
    for (const int threads : {1, 3}) {
      at::set_num_threads(threads);
      OptimConfig c = config_of(row);
      c.grad_clip = 0.5;
      c.ema_decay = 0.9;

      std::vector<NamedParameter> params;
      torch::manual_seed(3);
      for (const Shape& shape :
           {Shape{{300, 400}, Role::weight}, Shape{{130, 70}, Role::weight},
            Shape{{70, 130}, Role::residual_weight}, Shape{{50, 60}, Role::weight},
            Shape{{33, 20}, Role::weight}, Shape{{20, 33}, Role::weight},
            Shape{{40000}, Role::bias}, Shape{{500, 100}, Role::embedding}}) {
        params.push_back({.path = "p" + std::to_string(params.size()),
                          .parameter = Variable::parameter(torch::randn(shape.sizes)),
                          .role = shape.role});
      }

      Optimizer optimizer(c, params);
      results.emplace_back();
      for (int step = 0; step < 3; ++step) {
        for (const auto& p : params)
          p.parameter.leaf().grad = gradient(step, p.parameter.sizes()).to(at::kFloat);
        optimizer.step(rate_at(step));
      }
      for (const auto& group : optimizer.groups()) {
        for (const auto& slot : group.slots) {
          results.back().push_back(slot.param.data().clone());
          for (const auto& s : slot.state) results.back().push_back(s);
        }
      }
    }
    at::set_num_threads(before);

    for (size_t i = 0; i < results[0].size(); ++i) {
      CHECK(results[1][i].equal(results[0][i]));
    }
  }
}

TEST_CASE(
    "bfloat16 parameters equal rounded float32 parameters, lost updates are counted, and working "
    "copies are written",
    "[optimizer_table]") {
  for (const Row& row : optimizer_rows()) {
    INFO(row.kind << " " << row.label);
    const OptimConfig c = config_of(row);
    torch::manual_seed(5);
    const at::Tensor values = torch::randn({70, 90}).to(at::kBFloat16);
    const auto step = [&](at::ScalarType dtype, std::optional<uint64_t> seed) {
      const Variable p = Variable::parameter(values.to(dtype, false, true));
      if (dtype == at::kFloat) p.leaf().precision.low = values.clone();
      Optimizer optimizer(c, {{"w", p, Role::weight}}, seed);
      p.leaf().grad = gradient(1, {70, 90}).to(at::kFloat);
      optimizer.step(1e-3);
      return std::pair(p, optimizer.control());
    };

    const auto [wide, none] = step(at::kFloat, std::nullopt);
    const auto [nearest, counts] = step(at::kBFloat16, std::nullopt);
    CHECK(wide.leaf().precision.low.equal(wide.data().to(at::kBFloat16)));
    CHECK(nearest.data().equal(wide.data().to(at::kBFloat16)));
    CHECK(none.moved == 0);
    CHECK(counts.moved > 5000);
    if (row.kind != "rmsprop")
      CHECK(counts.lost > 100);  // except RMSprop, whose first step divides by sqrt(1 - alpha)

    // With stochastic rounding, values differ from values that are rounded to nearest.
    const auto [drawn, more] = step(at::kBFloat16, 9);
    CHECK(!drawn.data().equal(nearest.data()));
    CHECK((drawn.data().to(at::kFloat) - wide.data()).abs().max().item<float>() <
          0.04);  // within a spacing
  }
}

TEST_CASE("a gradient that is not finite changes no optimizer's parameters, state or average",
          "[optimizer_table]") {
  for (const Row& row : optimizer_rows()) {
    INFO(row.kind << " " << row.label);
    OptimConfig c = config_of(row);
    c.ema_decay = 0.9;
    const auto params = start(at::kFloat);
    Optimizer optimizer(c, params);

    const auto all = [&] {
      std::vector<at::Tensor> tensors;
      for (const auto& group : optimizer.groups()) {
        for (const auto& slot : group.slots) {
          tensors.push_back(slot.param.data().clone());
          for (const auto& s : slot.state) tensors.push_back(s.clone());
        }
      }
      for (const auto& [name, t] : optimizer.shared_state()) tensors.push_back(t.clone());
      return tensors;
    };
    const auto step = [&](double last) {
      for (const auto& p : params)
        p.parameter.leaf().grad = gradient(1, p.parameter.sizes()).to(at::kFloat);
      params[4].parameter.leaf().grad[516] = last;
      optimizer.step(0.1);
    };

    step(1);
    const auto before = all();
    step(NAN);
    const auto after = all();
    for (size_t i = 0; i < before.size(); ++i) CHECK(after[i].equal(before[i]));

    // A later step with finite gradients changes parameters and state again.
    optimizer.set_updates(1);
    step(1);
    const auto later = all();
    int moved = 0;
    for (size_t i = 0; i < before.size(); ++i) moved += later[i].equal(before[i]) ? 0 : 1;
    CHECK(moved > 10);
  }
}

TEST_CASE("set_updates() keeps NAdam's product of momenta", "[optimizer_table]") {
  OptimConfig c;
  c.kind = "nadam";
  const Variable p = Variable::parameter(torch::ones({3}));
  Optimizer optimizer(c, {{"w", p, Role::bias}});
  for (int i = 0; i < 3; ++i) {
    p.leaf().grad = torch::ones({3});
    optimizer.step(0.1);
  }
  REQUIRE(optimizer.shared_state().size() == 1);
  const double product = optimizer.shared_state()[0].second.item<double>();
  CHECK(product == optimizer.control().mu_product);
  CHECK(product < 0.2);
  optimizer.set_updates(3);
  CHECK(optimizer.control().mu_product == product);
  CHECK(optimizer.control().updates == 3);
  optimizer.set_updates(0);  // as in a new optimizer
  CHECK(optimizer.control().mu_product == 1);
}

TEST_CASE("8-bit levels are sorted and distinct, and have the expected extremes",
          "[optimizer_table]") {
  for (const bool with_sign : {true, false}) {
    const auto& levels = dynamic_levels(with_sign);
    CHECK(std::is_sorted(levels.begin(), levels.end()));
    CHECK(std::set<float>(levels.begin(), levels.end()).size() == 256);
    CHECK(levels.back() == 1);
    CHECK(std::count(levels.begin(), levels.end(), 0.0f) == 1);
    // Signed levels divide [0.1, 1] into 64 parts, and unsigned levels into 128. The largest level
    // below 1 is the middle of the last part. The least positive signed level is 10^-6 times the
    // middle of [0.1, 1]. The least positive unsigned level is 10^-6 times the middle of the lower
    // half of [0.1, 1].
    CHECK(levels[254] == Approx(1 - 0.45 / (with_sign ? 64 : 128)));
    CHECK(levels[with_sign ? 128 : 1] == Approx(with_sign ? 0.55e-6 : 0.325e-6));
    CHECK(levels[0] == Approx(with_sign ? -levels[254] : 0));
  }
}

TEST_CASE("8-bit moments move an element with a rare gradient at most 20% further than float ones",
          "[optimizer_table]") {
  // The rows of an embedding share blocks. The frequent row has a gradient in every step. The rare
  // row has a gradient only in the first step, and this gradient is 1000 times smaller.
  const std::vector<int64_t> sizes{64, 64};
  at::Tensor frequent = torch::zeros(sizes), first = torch::zeros(sizes);
  frequent[0].fill_(1e-1);
  first[0].fill_(1e-1);
  first[1].fill_(1e-4);

  const auto trained = [&](const char* kind) {
    OptimConfig c;
    c.kind = kind;
    c.weight_decay = 0;
    c.grad_clip = 0;
    const Variable p = Variable::parameter(torch::zeros(sizes));
    Optimizer optimizer(c, {{"w", p, Role::embedding}});
    for (int step = 1; step <= 8; ++step) {
      p.leaf().grad = (step == 1 ? first : frequent).clone();
      optimizer.step(step);
    }
    return p.data().abs();
  };

  const at::Tensor exact = trained("adamw"), low = trained("adamw8bit");
  CHECK(exact[1].max().item<float>() > 0);
  CHECK(low[1].max().item<float>() <= 1.2 * exact[1].max().item<float>());
  CHECK(low[0].max().item<float>() == Approx(exact[0].max().item<float>()).epsilon(0.05));
}

TEST_CASE("an update by Muon is nearly orthogonal, and has the size of an update by AdamW",
          "[optimizer_table]") {
  OptimConfig c;
  c.kind = "muon";
  c.weight_decay = 0;
  c.grad_clip = 0;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{64, 64}, {200, 50}, {50, 200}}) {
    const Variable p = Variable::parameter(torch::zeros(sizes));
    Optimizer optimizer(c, {{"w", p, Role::weight}});
    p.leaf().grad = gradient(2, sizes).to(at::kFloat);
    optimizer.step(1);
    const at::Tensor update = -p.data() / (0.2 * std::sqrt(std::max(sizes[0], sizes[1])));
    const at::Tensor values = std::get<1>(torch::linalg_svd(update.to(at::kDouble), false));
    // By Jordan et al., five steps bring singular values into [0.7, 1.2]. Values that start below
    // 0.01 of the norm take longer. A square random matrix has one or two such values.
    CHECK(values.max().item<double>() < 1.25);
    CHECK(values.gt(0.65).to(at::kDouble).mean().item<double>() > 0.95);
    CHECK(p.data().square().mean().sqrt().item<double>() == Approx(0.2).epsilon(0.2));
  }
}

TEST_CASE("clipping by value and by parameter agrees with torch, with and without a loss scale",
          "[optimizer_table]") {
  const auto step = [](const char* by, double clip, ScaleState* scale) {
    OptimConfig c;
    c.kind = "sgd";
    c.weight_decay = 0;
    c.grad_clip = clip;
    c.grad_clip_by = by;
    std::vector<NamedParameter> p{
        {"a", Variable::parameter(torch::zeros({40000}, at::kDouble)), Role::bias},
        {"b", Variable::parameter(torch::zeros({3}, at::kDouble)), Role::bias}};
    Optimizer optimizer(c, p);
    const double factor = scale != nullptr ? static_cast<double>(scale->scale) : 1;
    for (auto& q : p)
      q.parameter.leaf().grad = torch::linspace(-2, 3, q.parameter.numel(), at::kDouble) * factor;
    optimizer.step(1, {.scale = scale});
    return std::vector<at::Tensor>{-p[0].parameter.data(), -p[1].parameter.data()};
  };

  for (const float loss_scale : {0.0f, 512.0f}) {
    ScaleState state{.scale = loss_scale};
    ScaleState* const scale = loss_scale > 0 ? &state : nullptr;
    for (const double clip : {0.0, 0.5, 2.5, 1000.0}) {
      const auto value = step("value", clip, scale), parameter = step("parameter", clip, scale);
      for (size_t i = 0; i < 2; ++i) {
        const at::Tensor g = torch::linspace(-2, 3, i == 0 ? 40000 : 3, at::kDouble);
        CHECK((value[i] - (clip > 0 ? g.clamp(-clip, clip) : g)).abs().max().item<double>() <
              1e-14);

        at::Tensor one = torch::zeros_like(g).requires_grad_();
        one.mutable_grad() = g.clone();
        if (clip > 0) torch::nn::utils::clip_grad_norm_(std::vector<at::Tensor>{one}, clip);
        CHECK((parameter[i] - one.grad()).abs().max().item<double>() < 1e-14);
      }
    }
    CHECK(!step("parameter", 1, scale)[1].allclose(step("norm", 1, scale)[1]));  // clippings differ
  }
}

TEST_CASE("the EMA of weights agrees with its formula, also for parameters without a gradient",
          "[optimizer_table]") {
  for (const char* kind : {"adamw", "lamb", "muon", "adafactor", "adamw8bit"}) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      INFO(kind << " " << c10::toString(dtype));
      OptimConfig c;
      c.kind = kind;
      c.ema_decay = 0.7;
      std::vector<NamedParameter> p{
          {"w", Variable::parameter(torch::ones({70, 80}).to(dtype)), Role::weight},
          {"b", Variable::parameter(torch::ones({3}).to(dtype)), Role::bias}};
      Optimizer optimizer(c, p);

      // The oracle is the formula of the EMA, which begins with the parameters after the first
      // step.
      std::vector<at::Tensor> wanted(2);
      for (int step = 0; step < 6; ++step) {
        p[0].parameter.leaf().grad = gradient(step, {70, 80}).to(dtype);
        p[1].parameter.leaf().grad = step == 2 ? gradient(step, {3}).to(dtype) : at::Tensor();
        optimizer.step(0.05);
        for (size_t i = 0; i < 2; ++i) {
          const at::Tensor now = p[i].parameter.data().to(at::kDouble);
          wanted[i] = step == 0 ? now.clone() : 0.7 * wanted[i] + 0.3 * now;
        }
      }

      for (size_t i = 0; i < 2; ++i) {
        const Slot& slot = optimizer.groups()[i].slots[0];
        CHECK(slot.names.back() == "ema");
        CHECK(slot.state.back().scalar_type() == (dtype == at::kDouble ? at::kDouble : at::kFloat));
        // The tolerance allows for a few roundings per step.
        CHECK((slot.state.back().to(at::kDouble) - wanted[i]).abs().max().item<double>() <
              (dtype == at::kDouble ? 1e-14 : 2e-6));
      }
    }
  }
}

TEST_CASE("registering an optimizer under an existing name is an error", "[optimizer_table]") {
  CHECK_THAT(error_of([] { add_optimizer_kind({"adamw", "", nullptr}); }),
             ContainsSubstring("add_optimizer_kind") && ContainsSubstring("adamw"));
}

}  // namespace
