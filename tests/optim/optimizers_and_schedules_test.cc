// Compares optimizers with torch::optim over 25 float64 steps, and schedules with their formulas.

#include <functional>

#include "autograd/node.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "tests/support/catch.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;

TEST_CASE("the class Optimizer refuses options that break the rules of their keys",
          "[optimizers_and_schedules]") {
  const auto refusal = [](const std::function<void(OptimConfig&)>& change) {
    OptimConfig config;
    change(config);
    return error_of([&] {
      Optimizer(config, {{"w", Variable::parameter(torch::ones({2, 2})), Role::weight}});
    });
  };
  CHECK(refusal([](OptimConfig&) {}) == "");
  CHECK_THAT(refusal([](OptimConfig& c) { c.beta1 = 1; }), ContainsSubstring("beta1 = 1"));
  CHECK_THAT(refusal([](OptimConfig& c) { c.lr = -1; }), ContainsSubstring("lr = -1"));
  CHECK_THAT(refusal([](OptimConfig& c) { c.grad_clip_by = "global"; }),
             ContainsSubstring("grad_clip_by"));
  CHECK_THAT(refusal([](OptimConfig& c) {
               c.kind = "momentum";
               c.nesterov = true;
               c.dampening = 0.5;
             }),
             ContainsSubstring("nesterov"));
}

constexpr int steps = 25;
at::Tensor gradient(int step, const at::Tensor& p) {
  return (p * 0.7 + 0.3 * std::sin(0.9 * step)).tanh();
}

/// Returns the largest difference between our parameters and torch's after the steps.
template <class Make>
double apart(OptimConfig config, Make&& make) {
  const at::Tensor start_w = torch::linspace(-1, 1, 12, at::kDouble).view({3, 4}),
                   start_b = torch::linspace(0.1, 1, 4, at::kDouble);
  std::vector<NamedParameter> ours{{"w", Variable::parameter(start_w.clone()), Role::weight},
                                   {"b", Variable::parameter(start_b.clone()), Role::bias}};
  Optimizer optimizer(config, ours);
  at::Tensor w = start_w.clone().requires_grad_(), b = start_b.clone().requires_grad_();
  auto theirs = make(w, b);  // weight decay applies only to w
  for (int step = 0; step < steps; ++step) {
    const double lr = 0.05 / (1 + 0.1 * step);
    for (auto& p : ours) p.parameter.leaf().grad = gradient(step, p.parameter.data()).clone();
    optimizer.step(lr);
    for (auto* p : {&w, &b}) p->mutable_grad() = gradient(step, p->detach()).clone();
    for (auto& group : theirs->param_groups()) group.options().set_lr(lr);
    theirs->step();
  }
  return std::max((ours[0].parameter.data() - w).abs().max().template item<double>(),
                  (ours[1].parameter.data() - b).abs().max().template item<double>());
}

template <class Optim, class Options>
auto groups(Options decayed, Options plain) {
  return [=](at::Tensor& w, at::Tensor& b) {
    std::vector<torch::optim::OptimizerParamGroup> g;
    g.emplace_back(std::vector<at::Tensor>{w}, std::make_unique<Options>(decayed));
    g.emplace_back(std::vector<at::Tensor>{b}, std::make_unique<Options>(plain));
    return std::make_unique<Optim>(g, plain);
  };
}

constexpr double tolerance = 1e-13;  // float64 rounding over 25 steps

TEST_CASE("optimizers agree with torch::optim, option by option", "[optimizers_and_schedules]") {
  for (const double wd : {0.0, 0.1}) {
    OptimConfig c;
    c.weight_decay = wd;
    c.grad_clip = 0;
    INFO("weight decay " << wd);

    c.kind = "sgd";
    CHECK(apart(c, groups<torch::optim::SGD>(torch::optim::SGDOptions(1).weight_decay(wd),
                                             torch::optim::SGDOptions(1))) < tolerance);

    c.kind = "momentum";
    for (const auto& [dampening, nesterov] :
         {std::pair{0.0, false}, std::pair{0.1, false}, std::pair{0.0, true}}) {
      c.momentum = 0.9;
      c.dampening = dampening;
      c.nesterov = nesterov;
      const auto o =
          torch::optim::SGDOptions(1).momentum(0.9).dampening(dampening).nesterov(nesterov);
      CHECK(apart(c, groups<torch::optim::SGD>(torch::optim::SGDOptions(o).weight_decay(wd), o)) <
            tolerance);
    }

    c.kind = "adagrad";
    for (const auto& [decay, initial] : {std::pair{0.0, 0.0}, std::pair{0.1, 0.5}}) {
      c.lr_decay = decay;
      c.initial_accumulator = initial;
      c.eps = 1e-10;
      const auto o =
          torch::optim::AdagradOptions(1).lr_decay(decay).initial_accumulator_value(initial).eps(
              1e-10);
      CHECK(apart(c, groups<torch::optim::Adagrad>(torch::optim::AdagradOptions(o).weight_decay(wd),
                                                   o)) < tolerance);
    }

    c.kind = "rmsprop";
    c.eps = 1e-8;
    for (const double momentum : {0.0, 0.9}) {
      for (const bool centered : {false, true}) {
        c.momentum = momentum;
        c.centered = centered;
        c.alpha = 0.95;
        const auto o =
            torch::optim::RMSpropOptions(1).alpha(0.95).eps(1e-8).momentum(momentum).centered(
                centered);
        CHECK(apart(c, groups<torch::optim::RMSprop>(
                           torch::optim::RMSpropOptions(o).weight_decay(wd), o)) < tolerance);
      }
    }

    c.beta1 = 0.85;
    c.beta2 = 0.97;
    c.kind = "adam";
    const auto adam = torch::optim::AdamOptions(1).betas({0.85, 0.97}).eps(1e-8);
    CHECK(apart(c, groups<torch::optim::Adam>(torch::optim::AdamOptions(adam).weight_decay(wd),
                                              adam)) < tolerance);
    c.kind = "adamw";
    const auto adamw = torch::optim::AdamWOptions(1).betas({0.85, 0.97}).eps(1e-8).weight_decay(0);
    CHECK(apart(c, groups<torch::optim::AdamW>(torch::optim::AdamWOptions(adamw).weight_decay(wd),
                                               adamw)) < tolerance);
  }
}

TEST_CASE("the comparison with torch notices a wrong option", "[optimizers_and_schedules]") {
  OptimConfig c;
  c.kind = "adamw";
  c.weight_decay = 0;
  c.grad_clip = 0;
  c.beta1 = 0.85;
  c.beta2 = 0.971;
  const auto o = torch::optim::AdamWOptions(1).betas({0.85, 0.97}).weight_decay(0);
  CHECK(apart(c, groups<torch::optim::AdamW>(o, o)) > 1e-6);
}

TEST_CASE("with dampening = momentum, the momentum is an exponential average of gradients",
          "[optimizers_and_schedules]") {
  OptimConfig c;
  c.kind = "momentum";
  c.momentum = 0.9;
  c.dampening = 0.9;
  c.weight_decay = 0;
  c.grad_clip = 0;
  std::vector<NamedParameter> p{
      {"w", Variable::parameter(torch::zeros({2}, at::kDouble)), Role::bias}};
  Optimizer optimizer(c, p);
  double average = 0;
  for (int i = 1; i <= 5; ++i) {
    p[0].parameter.leaf().grad = torch::full({2}, i, at::kDouble);
    optimizer.step(0);
    average = i == 1 ? 1 : 0.9 * average + 0.1 * i;
  }
  CHECK(optimizer.groups()[1].slots[0].state[0][0].item<double>() == Approx(average));
}

TEST_CASE("clipping agrees with torch's clip_grad_norm_", "[optimizers_and_schedules]") {
  for (const double clip : {1.5, 100.0, 0.0}) {
    OptimConfig c;
    c.kind = "sgd";
    c.weight_decay = 0;
    c.grad_clip = clip;
    std::vector<NamedParameter> p{
        {"w", Variable::parameter(torch::zeros({3, 2}, at::kDouble)), Role::weight},
        {"b", Variable::parameter(torch::zeros({2}, at::kDouble)), Role::bias}};
    Optimizer optimizer(c, p);
    std::vector<at::Tensor> theirs;
    for (auto& q : p) {
      q.parameter.leaf().grad =
          torch::arange(1, q.parameter.numel() + 1, at::kDouble).view(q.parameter.sizes());
      theirs.push_back(torch::zeros(q.parameter.sizes(), at::kDouble).requires_grad_());
      theirs.back().mutable_grad() = q.parameter.grad().clone();
    }
    optimizer.step(1);
    const double torch_norm = torch::nn::utils::clip_grad_norm_(theirs, clip > 0 ? clip : 1e30);
    CHECK(optimizer.control().grad_norm == Approx(torch_norm).epsilon(1e-12));
    CHECK((p[0].parameter.data() + theirs[0].grad()).abs().max().item<double>() < 1e-14);
    CHECK(p[0].parameter.grad()[0][0].item<double>() == 1);  // gradients stay as they are
  }
}

TEST_CASE("after a gradient or loss that is not finite, no step changes the parameters",
          "[optimizers_and_schedules]") {
  for (const char* kind : {"sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw"}) {
    OptimConfig c;
    c.kind = kind;
    std::vector<NamedParameter> p{{"w", Variable::parameter(torch::ones({70, 700})), Role::weight},
                                  {"b", Variable::parameter(torch::ones({3})), Role::bias}};
    Optimizer optimizer(c, p);
    const auto step = [&](double last, double loss) {
      for (auto& q : p) q.parameter.leaf().grad = torch::ones(q.parameter.sizes());
      p[0].parameter.grad()[69][699] = last;
      optimizer.step(0.1, {.step = 6, .loss = torch::tensor(static_cast<float>(loss))});
      return optimizer.control();
    };

    CHECK(step(1, 1).updates == 1);
    const at::Tensor before = p[1].parameter.data().clone();
    CHECK(before[0].item<float>() < 1);

    const StepControl bad = step(kind == std::string("sgd") ? NAN : INFINITY, 1);
    CHECK(bad.updates == 1);
    CHECK(bad.failed_step == 7);
    CHECK(p[1].parameter.data().equal(before));
    CHECK(step(1, 1).updates == 1);  // later steps change nothing either
    CHECK(p[1].parameter.data().equal(before));

    // set_updates() clears the record of the failed step.
    optimizer.set_updates(1);
    CHECK(step(1, INFINITY).failed_step == 7);
    optimizer.set_updates(1);
    CHECK(step(1, 1).updates == 2);  // a finite step updates again
    CHECK(!p[1].parameter.data().equal(before));
  }
}

TEST_CASE("the error of a parameter or gradient that is not contiguous names the parameter",
          "[optimizers_and_schedules]") {
  const at::Tensor values = torch::arange(12.0).view({3, 4});
  const auto step = [](const at::Tensor& w, const at::Tensor& gradient) {
    const Variable p = Variable::parameter(w);
    p.leaf().grad = gradient;
    return error_of([&] { Optimizer(OptimConfig{}, {{"block.w", p, Role::weight}}).step(0.1); });
  };
  CHECK_THAT(step(values.clone(), values.t().contiguous().t()),
             ContainsSubstring("block.w") && ContainsSubstring("contiguous"));
  CHECK_THAT(step(values.t().contiguous().t(), values),
             ContainsSubstring("block.w") && ContainsSubstring("contiguous"));
  CHECK(step(values.clone(), values) == "");
}

TEST_CASE("a bfloat16 gradient updates the float32 parameter and its working copy",
          "[optimizers_and_schedules]") {
  std::vector<NamedParameter> p{{"w", Variable::parameter(torch::ones({2, 2})), Role::weight}};
  p[0].parameter.leaf().precision.low = p[0].parameter.data().to(at::kBFloat16);
  OptimConfig c;
  c.kind = "sgd";
  c.weight_decay = 0;
  c.grad_clip = 0;
  Optimizer optimizer(c, p);
  p[0].parameter.leaf().grad = torch::ones({2, 2}, at::kBFloat16);
  optimizer.step(1e-3);
  CHECK(p[0].parameter.data()[0][0].item<float>() ==
        Approx(0.999));  // the change is below bf16's spacing at 1
  CHECK(p[0].parameter.leaf().precision.low.equal(p[0].parameter.data().to(at::kBFloat16)));
}

TEST_CASE("constant, linear, cosine and wsd schedules agree with their formulas",
          "[optimizers_and_schedules]") {
  ScheduleConfig c;
  c.warmup_steps = 10;
  c.min_lr = 0.1;
  const auto at = [&](const char* kind, int64_t step) {
    c.kind = kind;
    return learning_rate(c, 1, step, 110);
  };
  for (const char* kind : {"constant", "linear", "cosine", "wsd"}) {
    CHECK(at(kind, 0) == Approx(1.0 / 11));
    CHECK(at(kind, 9) == Approx(10.0 / 11));
    CHECK(at(kind, 10) == Approx(1));
  }
  CHECK(at("constant", 109) == 1);
  CHECK(at("linear", 60) == Approx(0.55));
  CHECK(at("linear", 110) == Approx(0.1));
  CHECK(at("cosine", 60) == Approx(0.55));
  CHECK(at("cosine", 35) == Approx(0.1 + 0.45 * (1 + std::cos(std::numbers::pi / 4))));
  CHECK(at("wsd", 87) == Approx(1));
  CHECK(at("wsd", 99) == Approx(0.55));
  c.warmup_steps = 0;
  CHECK(learning_rate(c, 1, 0, 1) == 1);
}

TEST_CASE("wsd decays exactly in the last decay_share of the steps", "[optimizers_and_schedules]") {
  ScheduleConfig c;
  c.kind = "wsd";
  c.warmup_steps = 0;
  c.min_lr = 0;
  for (int tenths = 1; tenths <= 9; ++tenths) {
    for (const int64_t steps : {10, 90, 170, 1000, 123450, 300000000}) {
      CAPTURE(tenths, steps);
      c.decay_share = tenths / 10.0;
      const int64_t first = steps - steps / 10 * tenths;  // exact in integers
      CHECK(learning_rate(c, 1, first, steps) == 1);
      CHECK(learning_rate(c, 1, first + 1, steps) < 1);
    }
  }
}

TEST_CASE("other schedules agree with their formulas at every step", "[optimizers_and_schedules]") {
  constexpr int64_t steps = 300, warmup = 20;
  constexpr double lr = 0.3, least = 0.02, pi = std::numbers::pi;
  ScheduleConfig c;
  c.warmup_steps = warmup;
  c.min_lr = least;
  c.power = 1.7;
  c.cycle_steps = 40;
  c.rise_share = 0.25;
  c.start_div = 8;

  for (int64_t step = 0; step < steps; ++step) {
    INFO("step " << step);
    const auto s = static_cast<double>(step);
    const auto rate = [&](const char* kind, double cycle_factor = 1) {
      c.kind = kind;
      c.cycle_factor = cycle_factor;
      return learning_rate(c, lr, step, steps);
    };

    // The schedule one_cycle is torch's OneCycleLR with 75 steps up and 225 steps down.
    const double up = s / 75, down = (s - 75) / 225;
    CHECK(rate("one_cycle") == Approx(s < 75
                                          ? lr / 8 + (lr - lr / 8) * (1 - std::cos(pi * up)) / 2
                                          : least + (lr - least) * (1 + std::cos(pi * down)) / 2));

    if (step < warmup) {
      for (const char* kind : {"polynomial", "inverse_sqrt", "cosine_restarts"})
        CHECK(rate(kind) == Approx(lr * (s + 1) / (warmup + 1)));
      continue;
    }
    CHECK(rate("polynomial") == Approx(least + (lr - least) * std::pow((300 - s) / 280, 1.7)));
    // inverse_sqrt (Vaswani et al.) is the minimum of a linear warm-up and an inverse square root,
    // which meet at the end of warm-up. The rate is never below min_lr.
    const double a = (s + 1) / (warmup + 1);
    CHECK(rate("inverse_sqrt") == Approx(std::max(least, lr * std::min(a, 1 / std::sqrt(a)))));

    // If all cycles have 40 steps, the position in a cycle is a remainder. If the cycles have 40,
    // 60, 90, ... steps, the position follows from the sum of a geometric series.
    const double in_cycle = std::fmod(s - warmup, 40) / 40;
    CHECK(rate("cosine_restarts") ==
          Approx(least + (lr - least) * (1 + std::cos(pi * in_cycle)) / 2));
    const double cycle = std::floor(std::log((s - warmup) / 40 * 0.5 + 1 + 1e-12) / std::log(1.5));
    const double begin = 40 * (std::pow(1.5, cycle) - 1) / 0.5, length = 40 * std::pow(1.5, cycle);
    CHECK(rate("cosine_restarts", 1.5) ==
          Approx(least + (lr - least) * (1 + std::cos(pi * (s - warmup - begin) / length)) / 2));
  }

  std::set<std::string> tested{"constant",   "linear",       "cosine",          "wsd",
                               "polynomial", "inverse_sqrt", "cosine_restarts", "one_cycle"};
  const auto names = schedule_names();
  CHECK(std::set<std::string>(names.begin(), names.end()) ==
        tested);  // every schedule has its formula here
}

TEST_CASE("optim.groups of a config sets parameter groups, and wrong groups are refused",
          "[optimizers_and_schedules]") {
  const auto tables = [](const std::string& text) {
    return std::get<ConfigTables>(parse_toml("[optim]\n" + text, "a.toml").at(0).value);
  };
  OptimConfig c;
  c.kind = "sgd";
  c.weight_decay = 0.1;
  c.grad_clip = 0;
  c.groups = tables(
      "[[optim.groups]]\nmatch = \"head.*\"\nlr_scale = 0.5\n[[optim.groups]]\nweight_decay = "
      "0.3\nmatch = \"*.b\"\n");
  CHECK(toml_text(c.groups) ==
        "[{match = \"head.*\", lr_scale = 0.5}, {weight_decay = 0.3, match = \"*.b\"}]");
  CHECK(toml_text(tables("groups = " + toml_text(c.groups))) ==
        toml_text(c.groups));  // in the form of a saved config

  std::vector<NamedParameter> p;
  for (const char* path : {"head.w", "head.b", "body.w", "body.b"}) {
    p.push_back({path, Variable::parameter(torch::ones({2, 2}, at::kDouble)), Role::weight});
    p.back().parameter.leaf().grad = torch::full({2, 2}, 0.5, at::kDouble);
  }
  Optimizer(c, p).step(1);
  const auto value = [&](size_t i) { return p[i].parameter.data()[0][0].item<double>(); };
  CHECK(value(0) == Approx(1 - 0.5 * (0.5 + 0.1)));
  CHECK(value(1) == Approx(1 - 0.5 * (0.5 + 0.1)));  // the first group that matches applies
  CHECK(value(2) == Approx(1 - (0.5 + 0.1)));
  CHECK(value(3) == Approx(1 - (0.5 + 0.3)));

  const auto refusal = [&](const std::string& text) {
    c.groups = tables("groups = " + text);
    return error_of([&] { Optimizer(c, p); });
  };
  CHECK_THAT(
      refusal("[{match = \"*.bias\"}]"),
      ContainsSubstring("\"*.bias\"") && ContainsSubstring("head.w, head.b, body.w, body.b"));
  CHECK_THAT(refusal("[{match = \"*\"}, {match = \"*.b\"}]"),
             ContainsSubstring("\"*.b\"") && ContainsSubstring("before"));
  CHECK_THAT(refusal("[{match = \"*\", lr = 1}]"),
             ContainsSubstring("group 1") && ContainsSubstring("no key lr"));
  CHECK_THAT(refusal("[{match = \"*\"}, {lr_scale = 1}]"), ContainsSubstring("group 2") &&
                                                               ContainsSubstring("match") &&
                                                               ContainsSubstring("missing"));
  CHECK_THAT(refusal("[{match = \"*\", lr_scale = -1}]"), ContainsSubstring("lr_scale") &&
                                                              ContainsSubstring("1e30") &&
                                                              ContainsSubstring("not -1"));
  CHECK_THAT(refusal("[{match = 3}]"), ContainsSubstring("match") && ContainsSubstring("not 3"));
  CHECK(refusal("[{match = \"*\", lr_scale = 2}]").empty());
}

TEST_CASE(
    "parameter groups have a learning-rate factor and a weight decay, and the first match applies",
    "[optimizers_and_schedules]") {
  const auto make = [] {
    std::vector<NamedParameter> p;
    for (const char* path : {"head.weight", "head.bias", "body.weight", "body.bias"}) {
      const bool matrix = std::string(path).ends_with("weight");
      p.push_back({path,
                   Variable::parameter(torch::ones(
                       matrix ? at::IntArrayRef{2, 2} : at::IntArrayRef{2}, at::kDouble)),
                   matrix ? Role::weight : Role::bias});
      p.back().parameter.leaf().grad = torch::full_like(p.back().parameter.data(), 0.5);
    }
    return p;
  };

  OptimConfig c;
  c.kind = "sgd";
  c.weight_decay = 0.1;
  c.grad_clip = 0;

  const auto p = make();
  Optimizer optimizer(
      c, p, std::nullopt,
      {{.pattern = "head.bias", .weight_decay = 0.2},
       {.pattern = "head.*", .lr_factor = 0.5},
       {.which = [](const NamedParameter& q) { return q.role == Role::bias; }, .lr_factor = 0}});
  REQUIRE(optimizer.groups().size() == 8);
  CHECK(optimizer.groups()[0].slots[0].path == "body.weight");
  optimizer.step(1);
  const auto value = [&](size_t i) { return p[i].parameter.data().view(-1)[0].item<double>(); };
  CHECK(value(0) == Approx(1 - 0.5 * (0.5 + 0.1)).epsilon(1e-12));
  CHECK(value(1) == Approx(1 - (0.5 + 0.2)).epsilon(1e-12));
  CHECK(value(2) == Approx(1 - (0.5 + 0.1)).epsilon(1e-12));
  CHECK(value(3) == 1);
  optimizer.groups()[7].lr_factor = 2;  // changed between steps
  optimizer.step(1);
  CHECK(value(3) == Approx(1 - 2 * 0.5).margin(1e-12));

  // A group that matches all parameters gives bitwise the same parameters as an optimizer without
  // groups.
  const auto a = make(), b = make();
  Optimizer(c, a).step(0.3);
  Optimizer(c, b, std::nullopt, {{.pattern = "*"}}).step(0.3);
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i].parameter.data().equal(b[i].parameter.data()));
  CHECK_THAT(error_of([&] { Optimizer(c, a, std::nullopt, {{.pattern = "tail.*"}}); }),
             ContainsSubstring("\"tail.*\"") && ContainsSubstring("head.weight"));
}

}  // namespace
