// Every optimizer against torch.optim's C++ half, or its paper's formula in float64, over many steps, shapes and
// options. The table has a row for each kind, which a test holds it to.
#include "autograd/node.h"
#include "core/device.h"
#include "core/kernels/adam8bit.h"
#include "optim/optimizer.h"
#include "tests/catch.h"

namespace {

using namespace lathe;
using State = std::map<std::string, at::Tensor>;

/// What a reference knows of a step; p and everything that it makes of it are float64.
struct Step {
  const OptimConfig& c;
  double lr, wd, t;  // t: from 1
  Role role;
};
/// The parameter after a step, by a formula; `s` is the parameter's own, empty at first.
using Formula = std::function<at::Tensor(const at::Tensor& p, const at::Tensor& g, State& s, const Step& k)>;

struct Row {
  std::string kind, label;
  std::function<void(OptimConfig&)> set;  ///< the options of the row
  Formula formula;                        ///< or
  std::function<std::unique_ptr<torch::optim::Optimizer>(at::Tensor&, const Step&)> torch;
  std::function<void(OptimConfig&)> wrong;  ///< what makes it another optimizer, a little
};

at::Tensor& kept(State& s, const char* name, const at::Tensor& like) {
  return s.try_emplace(name, torch::zeros_like(like)).first->second;
}
void mix(at::Tensor& average, double decay, const at::Tensor& x) { average = decay * average + (1 - decay) * x; }

at::Tensor adam_direction(const at::Tensor& g, State& s, const Step& k) {
  mix(kept(s, "m", g), k.c.beta1, g), mix(kept(s, "v", g), k.c.beta2, g * g);
  const at::Tensor m = s["m"] / (1 - std::pow(k.c.beta1, k.t)), v = s["v"] / (1 - std::pow(k.c.beta2, k.t));
  return m / (v.sqrt() + k.c.eps);
}

at::Tensor lion(const at::Tensor& p, const at::Tensor& g, State& s, const Step& k) {
  at::Tensor& m = kept(s, "m", g);
  const at::Tensor u = torch::sign(k.c.beta1 * m + (1 - k.c.beta1) * g);
  mix(m, k.c.beta2, g);
  return p - k.lr * (u + k.wd * p);
}

at::Tensor nadam(const at::Tensor& p, const at::Tensor& gradient, State& s, const Step& k) {
  const at::Tensor g = gradient + k.wd * p;
  mix(kept(s, "m", g), k.c.beta1, g), mix(kept(s, "v", g), k.c.beta2, g * g);
  const auto mu = [&](double t) { return k.c.beta1 * (1 - 0.5 * std::pow(0.96, t * k.c.momentum_decay)); };
  double product = 1;
  for (int i = 1; i <= k.t; ++i) product *= mu(i);
  const at::Tensor m_hat = mu(k.t + 1) * s["m"] / (1 - product * mu(k.t + 1)) + (1 - mu(k.t)) * g / (1 - product);
  return p - k.lr * m_hat / ((s["v"] / (1 - std::pow(k.c.beta2, k.t))).sqrt() + k.c.eps);
}

at::Tensor lamb(const at::Tensor& p, const at::Tensor& g, State& s, const Step& k) {
  const at::Tensor u = adam_direction(g, s, k) + k.wd * p;
  const double norm = p.norm().item<double>(), length = u.norm().item<double>();
  return p - k.lr * (norm > 0 && length > 0 ? norm / length : 1) * u;
}

at::Tensor adafactor(const at::Tensor& p, const at::Tensor& g, State& s, const Step& k) {
  if (p.numel() == 0) return p;
  const double b = 1 - std::pow(k.t, -k.c.factor_decay);
  const at::Tensor x = g * g + 1e-30;
  at::Tensor v;
  if (p.dim() >= 2) {
    const at::Tensor matrix = x.reshape({x.size(0), -1});
    const at::Tensor rows = matrix.mean(1, true), columns = matrix.mean(0, true);
    mix(kept(s, "r", rows), b, rows), mix(kept(s, "c", columns), b, columns);
    v = (s["r"].matmul(s["c"]) / s["r"].mean()).reshape(p.sizes());
  } else {
    mix(kept(s, "v", x), b, x);
    v = s["v"];
  }
  const auto rms = [](const at::Tensor& of) { return of.square().mean().sqrt().item<double>(); };
  const at::Tensor u = g / v.sqrt();
  double alpha = k.c.relative_step ? std::min(k.lr, 1 / std::sqrt(k.t)) : k.lr;
  if (k.c.scale_parameter) alpha *= std::max(1e-3, rms(p));
  return p - k.lr * k.wd * p - alpha * u / std::max(1.0, rms(u) / k.c.factor_clip);
}

/// By singular values: Newton-Schulz is an odd polynomial of them.
at::Tensor muon(const at::Tensor& p, const at::Tensor& g, State& s, const Step& k) {
  if (!k.role.hidden || p.dim() < 2 || p.numel() == 0)
    return p - k.lr * k.c.muon_rest_lr * (adam_direction(g, s, k) + k.wd * p);
  at::Tensor& m = kept(s, "m", g);
  mix(m, k.c.muon_momentum, g);
  const at::Tensor x = k.c.muon_nesterov ? (1 - k.c.muon_momentum) * g + k.c.muon_momentum * m : m;
  const at::Tensor matrix = x.reshape({x.size(0), -1});
  const auto [u, values, vh] = torch::linalg_svd(matrix / matrix.norm(), /*full_matrices=*/false);
  at::Tensor y = values;
  for (int64_t i = 0; i < k.c.muon_steps; ++i) y = 3.4445 * y - 4.7750 * y.pow(3) + 2.0315 * y.pow(5);
  const at::Tensor o = u.matmul(torch::diag(y)).matmul(vh).reshape(p.sizes());
  const auto rows = static_cast<double>(matrix.size(0)), columns = static_cast<double>(matrix.size(1));
  const double length =
      k.c.muon_scale == "rms" ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
  return p - k.lr * k.wd * p - k.lr * length * o;
}

/// A moment in 8 bits: each block's largest value, and the nearer of the levels below and above.
at::Tensor through_8_bits(const at::Tensor& moment, int64_t block, bool with_sign) {
  const auto& list = dynamic_levels(with_sign);
  const at::Tensor levels = torch::tensor(at::ArrayRef<float>(list.data(), list.size())).to(at::kDouble);
  const at::Tensor flat = moment.reshape(-1);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : flat.split(block)) {
    const double most = part.abs().max().item<double>();
    if (most == 0) {
      parts.push_back(part);
      continue;
    }
    const at::Tensor x = part / most, above = torch::searchsorted(levels, x).clamp(1, 255), below = above - 1;
    const auto off = [&](const at::Tensor& which) { return (levels.index_select(0, which) - x).abs(); };
    const at::Tensor nearest = torch::where(off(below) <= off(above), below, above);
    parts.push_back(levels.index_select(0, nearest) * most);
  }
  return torch::cat(parts).reshape(moment.sizes());
}
at::Tensor adam8bit(const at::Tensor& p, const at::Tensor& gradient, State& s, const Step& k) {
  const bool decoupled = k.c.kind == "adamw8bit";
  const at::Tensor g = decoupled ? gradient : gradient + k.wd * p;
  const at::Tensor next = (decoupled ? p * (1 - k.lr * k.wd) : p) - k.lr * adam_direction(g, s, k);
  if (p.numel() >= 4096) {
    s["m"] = through_8_bits(s["m"], k.c.state_block, true);
    s["v"] = through_8_bits(s["v"], k.c.state_block, false);
  }
  return next;
}

template <class Optim, class Options>
auto torchs(std::function<Options(const Step&)> options) {
  return [options](at::Tensor& p, const Step& k) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<Optim>(std::vector<at::Tensor>{p}, options(k));
  };
}

void nothing(OptimConfig&) {}

std::vector<Row> rows() {
  namespace o = torch::optim;
  const auto beta = [](OptimConfig& c) { c.beta2 = 0.971; };
  const auto adams = [](const Step& k) {
    return o::AdamOptions(k.lr).betas({k.c.beta1, k.c.beta2}).weight_decay(k.wd).amsgrad(k.c.amsgrad);
  };
  const auto adamws = [](const Step& k) {
    return o::AdamWOptions(k.lr).betas({k.c.beta1, k.c.beta2}).weight_decay(k.wd).amsgrad(k.c.amsgrad);
  };
  const auto sgds = [](const Step& k) {
    const bool has_momentum = k.c.kind == "momentum";
    return o::SGDOptions(k.lr)
        .momentum(has_momentum ? k.c.momentum : 0)
        .dampening(has_momentum ? k.c.dampening : 0)
        .nesterov(has_momentum && k.c.nesterov)
        .weight_decay(k.wd);
  };
  const auto amsgrad = [](OptimConfig& c) { c.amsgrad = true; };
  const auto momentum = [](OptimConfig& c) { c.momentum = 0.91; };
  return {
      {"sgd", "", nothing, {}, torchs<o::SGD, o::SGDOptions>(sgds), [](OptimConfig& c) { c.lr = 1.01; }},
      {"momentum",
       "Nesterov",
       [](OptimConfig& c) { c.nesterov = true; },
       {},
       torchs<o::SGD, o::SGDOptions>(sgds),
       momentum},
      {"momentum",
       "dampening",
       [](OptimConfig& c) { c.dampening = 0.3; },
       {},
       torchs<o::SGD, o::SGDOptions>(sgds),
       momentum},
      {"adagrad",
       "",
       [](OptimConfig& c) { c.lr_decay = 0.1, c.initial_accumulator = 0.5; },
       {},
       torchs<o::Adagrad, o::AdagradOptions>([](const Step& k) {
         return o::AdagradOptions(k.lr).lr_decay(0.1).initial_accumulator_value(0.5).eps(k.c.eps).weight_decay(k.wd);
       }),
       [](OptimConfig& c) { c.lr_decay = 0.11; }},
      {"rmsprop",
       "centred, momentum",
       [](OptimConfig& c) { c.centered = true; },
       {},
       torchs<o::RMSprop, o::RMSpropOptions>([](const Step& k) {
         return o::RMSpropOptions(k.lr).alpha(0.99).momentum(0.9).centered(true).eps(k.c.eps).weight_decay(k.wd);
       }),
       [](OptimConfig& c) { c.alpha = 0.991; }},
      {"adam", "", nothing, {}, torchs<o::Adam, o::AdamOptions>(adams), beta},
      {"adam",
       "amsgrad",
       amsgrad,
       {},
       torchs<o::Adam, o::AdamOptions>(adams),
       [](OptimConfig& c) { c.amsgrad = false; }},
      {"adamw", "", nothing, {}, torchs<o::AdamW, o::AdamWOptions>(adamws), beta},
      {"adamw",
       "amsgrad",
       amsgrad,
       {},
       torchs<o::AdamW, o::AdamWOptions>(adamws),
       [](OptimConfig& c) { c.amsgrad = false; }},
      {"nadam", "", nothing, nadam, {}, [](OptimConfig& c) { c.momentum_decay = 0.005; }},
      {"lion", "", nothing, lion, {}, [](OptimConfig& c) { c.beta1 = 0.8; }},
      {"lamb", "", nothing, lamb, {}, beta},
      {"adafactor", "", nothing, adafactor, {}, [](OptimConfig& c) { c.factor_decay = 0.81; }},
      {"adafactor",
       "relative step, scaled",
       [](OptimConfig& c) { c.relative_step = c.scale_parameter = true; },
       adafactor,
       {},
       [](OptimConfig& c) { c.factor_clip = 0.9; }},
      {"adam8bit", "", nothing, adam8bit, {}, beta},
      {"adamw8bit", "blocks of 2048", [](OptimConfig& c) { c.state_block = 2048; }, adam8bit, {}, beta},
      {"muon", "", nothing, muon, {}, [](OptimConfig& c) { c.muon_momentum = 0.94; }},
      {"muon",
       "spectral, plain",
       [](OptimConfig& c) { c.muon_scale = "spectral", c.muon_nesterov = false, c.muon_rest_lr = 0.5; },
       muon,
       {},
       [](OptimConfig& c) { c.muon_steps = 4; }},
  };
}

struct Shape {
  std::vector<int64_t> sizes;
  Role role;
};
/// 0-dim, empty, odd and large; matrices both ways round, filters, and a matrix that is not hidden.
std::vector<Shape> shapes() {
  return {
      {{}, Role::scale},         {{0}, Role::bias},         {{0, 3}, Role::weight},       {{1}, Role::bias},
      {{517}, Role::bias},       {{3, 5}, Role::weight},    {{5, 3}, Role::weight},       {{4, 3, 3, 3}, Role::filter},
      {{131, 67}, Role::weight}, {{40, 200}, Role::weight}, {{67, 131}, Role::embedding}, {{70, 9}, Role::head}};
}

constexpr int steps = 20;
double rate(int step) { return 0.05 / (1 + 0.1 * step); }
at::Tensor gradient(int step, at::IntArrayRef sizes) {
  torch::manual_seed(static_cast<uint64_t>(step) + 100);
  const at::Tensor draw = torch::randn(sizes, at::kDouble);
  return draw * (1 + 0.5 * std::sin(0.9 * step));
}

OptimConfig config_of(const Row& row) {
  OptimConfig c;
  c.kind = row.kind, c.beta1 = 0.85, c.beta2 = 0.97, c.grad_clip = 0, c.weight_decay = 0.1;
  row.set(c);
  return c;
}
std::vector<NamedParameter> start(at::ScalarType dtype) {
  std::vector<NamedParameter> all;
  torch::manual_seed(7);
  for (const Shape& shape : shapes()) {
    all.push_back({"p" + std::to_string(all.size()),
                   Variable::parameter(torch::randn(shape.sizes, at::kDouble).to(dtype)), shape.role});
  }
  return all;
}
double decay_of(const NamedParameter& p, const OptimConfig& c) { return p.parameter.dim() >= 2 ? c.weight_decay : 0; }

/// Ours after the steps.
std::vector<at::Tensor> ours(const OptimConfig& c, at::ScalarType dtype) {
  const auto params = start(dtype);
  Optimizer optimizer(c, params);
  for (int step = 0; step < steps; ++step) {
    for (const auto& p : params) p.parameter.leaf().grad = gradient(step, p.parameter.sizes()).to(dtype);
    optimizer.step(rate(step) * c.lr / 1e-3);
  }
  std::vector<at::Tensor> all;
  for (const auto& p : params) all.push_back(p.parameter.data().to(at::kDouble));
  return all;
}
/// The reference's, in float64.
std::vector<at::Tensor> theirs(const Row& row, at::ScalarType gradients = at::kDouble) {
  const OptimConfig c = config_of(row);
  std::vector<at::Tensor> all;
  for (const auto& named : start(at::kFloat)) {
    at::Tensor p = named.parameter.data().to(at::kDouble);
    if (gradients == at::kDouble) p = start(at::kDouble)[all.size()].parameter.data();
    const auto draw = [&](int step) { return gradient(step, p.sizes()).to(gradients).to(at::kDouble); };
    Step k{c, rate(0), decay_of(named, c), 1, named.role};
    if (row.torch) {
      p = p.clone().requires_grad_();
      const auto optimizer = row.torch(p, k);
      for (int step = 0; step < steps; ++step) {
        p.mutable_grad() = draw(step);
        for (auto& group : optimizer->param_groups()) group.options().set_lr(rate(step));
        optimizer->step();
      }
    } else {
      State state;
      for (int step = 0; step < steps; ++step) {
        k.lr = rate(step), k.t = step + 1;
        p = row.formula(p, draw(step), state, k);
      }
    }
    all.push_back(p.detach());
  }
  return all;
}

/// The share of elements that are further apart than `tolerance`, relative to 1 and the element.
double share_apart(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double tolerance) {
  double apart = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += static_cast<double>(
        (a[i] - b[i]).abs().gt(tolerance * b[i].abs().clamp_min(1)).logical_or(a[i].isnan()).sum().item<int64_t>());
    all += static_cast<double>(a[i].numel());
  }
  return apart / all;
}

TEST_CASE("every optimizer has its row, and every row an optimizer", "[optimizers]") {
  std::set<std::string> in_table, in_registry;
  for (const Row& row : rows()) in_table.insert(row.kind);
  for (const std::string& name : optimizer_names()) in_registry.insert(name);
  CHECK(in_table == in_registry);
}

TEST_CASE("every optimizer is its formula, in float64", "[optimizers]") {
  for (const Row& row : rows()) {
    INFO(row.kind << " " << row.label);
    const auto wanted = theirs(row);
    // Float64's rounding over 20 steps; singular values and 25 products lose a few digits more. In 8 bits a scale is
    // float32, the reference's float64, and a moment that lies halfway between two levels may go to either.
    const bool eight = row.kind.ends_with("8bit");
    const double tolerance = eight ? 1e-6 : row.kind == "muon" ? 1e-9 : 1e-12;
    CHECK(share_apart(ours(config_of(row), at::kDouble), wanted, tolerance) <= (eight ? 1e-3 : 0));
    OptimConfig wrong = config_of(row);
    row.wrong(wrong);
    CHECK(share_apart(ours(wrong, at::kDouble), wanted, tolerance) > 0.1);  // the control
  }
}

TEST_CASE("every optimizer is its formula, in float32", "[optimizers]") {
  for (const Row& row : rows()) {
    INFO(row.kind << " " << row.label);
    const bool eight = row.kind.ends_with("8bit"), muon = row.kind == "muon", lion = row.kind == "lion";
    // 20 steps of up to 0.05 that are each rounded some 8 times in float32: 20 * 8 * 2^-24 at a size of 1. RMSprop's
    // deviation and Newton-Schulz (a small singular value grows by 3.4 a step, its error with it) lose more. Lion's
    // sign, and a level in 8 bits, may go the other way where it is a close call.
    const double tolerance = muon || row.kind == "rmsprop" ? 5e-3 : 3e-5;
    CHECK(share_apart(ours(config_of(row), at::kFloat), theirs(row, at::kFloat), tolerance) <= (eight  ? 5e-3
                                                                                                : lion ? 1e-3
                                                                                                       : 0));
  }
}

TEST_CASE("every optimizer gives the same bits on any number of threads", "[optimizers]") {
  const int before = at::get_num_threads();
  for (const Row& row : rows()) {
    INFO(row.kind << " " << row.label);
    std::vector<std::vector<at::Tensor>> results;
    for (const int threads : {1, 3}) {
      at::set_num_threads(threads);
      OptimConfig c = config_of(row);
      c.grad_clip = 0.5, c.ema_decay = 0.9;
      std::vector<NamedParameter> params;
      torch::manual_seed(3);
      for (const Shape& shape :
           {Shape{{300, 400}, Role::weight}, Shape{{130, 70}, Role::weight}, Shape{{70, 130}, Role::residual_weight},
            Shape{{50, 60}, Role::weight}, Shape{{33, 20}, Role::weight}, Shape{{20, 33}, Role::weight},
            Shape{{40000}, Role::bias}, Shape{{500, 100}, Role::embedding}}) {
        params.push_back(
            {"p" + std::to_string(params.size()), Variable::parameter(torch::randn(shape.sizes)), shape.role});
      }
      Optimizer optimizer(c, params);
      results.emplace_back();
      for (int step = 0; step < 3; ++step) {
        for (const auto& p : params) p.parameter.leaf().grad = gradient(step, p.parameter.sizes()).to(at::kFloat);
        optimizer.step(rate(step));
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

TEST_CASE("bfloat16 parameters: rounded as the float32 update of what they were, counted, and their copies written",
          "[optimizers]") {
  for (const Row& row : rows()) {
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
    if (row.kind != "rmsprop") CHECK(counts.lost > 100);  // whose first step divides by the root of 1 - alpha
    const auto [drawn, more] = step(at::kBFloat16, 9);
    CHECK(!drawn.data().equal(nearest.data()));
    CHECK((drawn.data().to(at::kFloat) - wide.data()).abs().max().item<float>() < 0.04);  // within a spacing
  }
}

TEST_CASE("a gradient that is not finite leaves every optimizer's parameters, state and average", "[optimizers]") {
  for (const Row& row : rows()) {
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
      for (const auto& p : params) p.parameter.leaf().grad = gradient(1, p.parameter.sizes()).to(at::kFloat);
      params[4].parameter.leaf().grad[516] = last;
      optimizer.step(0.1);
    };
    step(1);
    const auto before = all();
    step(NAN);
    const auto after = all();
    for (size_t i = 0; i < before.size(); ++i) CHECK(after[i].equal(before[i]));
    optimizer.set_updates(1);
    step(1);
    const auto later = all();
    int moved = 0;
    for (size_t i = 0; i < before.size(); ++i) moved += later[i].equal(before[i]) ? 0 : 1;
    CHECK(moved > 10);
  }
}

TEST_CASE("NAdam's product of momenta stays when updates are set", "[optimizers]") {
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
}

TEST_CASE("8-bit levels", "[optimizers]") {
  for (const bool with_sign : {true, false}) {
    const auto& levels = dynamic_levels(with_sign);
    CHECK(std::is_sorted(levels.begin(), levels.end()));
    CHECK(std::set<float>(levels.begin(), levels.end()).size() == 256);
    CHECK(levels.back() == 1);
    CHECK(std::count(levels.begin(), levels.end(), 0.0f) == 1);
    // The largest below 1 is the middle of the last of 64 (128) parts of [0.1, 1], the least the middle of [0.1, 1]
    // (of its lower half) at 10^-6.
    CHECK(levels[254] == Approx(1 - 0.45 / (with_sign ? 64 : 128)));
    CHECK(levels[with_sign ? 128 : 1] == Approx(with_sign ? 0.55e-6 : 0.325e-6));
    CHECK(levels[0] == Approx(with_sign ? -levels[254] : 0));
  }
}

TEST_CASE("an update by Muon is near orthogonal, and of AdamW's size", "[optimizers]") {
  OptimConfig c;
  c.kind = "muon", c.weight_decay = 0, c.grad_clip = 0;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{64, 64}, {200, 50}, {50, 200}}) {
    const Variable p = Variable::parameter(torch::zeros(sizes));
    Optimizer optimizer(c, {{"w", p, Role::weight}});
    p.leaf().grad = gradient(2, sizes).to(at::kFloat);
    optimizer.step(1);
    const at::Tensor update = -p.data() / (0.2 * std::sqrt(std::max(sizes[0], sizes[1])));
    const at::Tensor values = std::get<1>(torch::linalg_svd(update.to(at::kDouble), false));
    // Jordan et al.: five steps bring singular values into [0.7, 1.2]; those that begin below 0.01 of the norm lag
    // behind, of which a square random matrix has one or two.
    CHECK(values.max().item<double>() < 1.25);
    CHECK(values.gt(0.65).to(at::kDouble).mean().item<double>() > 0.95);
    CHECK(p.data().square().mean().sqrt().item<double>() == Approx(0.2).epsilon(0.2));
  }
}

TEST_CASE("clipping by value and by parameter", "[optimizers]") {
  const auto step = [](const char* by, double clip, ScaleState* scale) {
    OptimConfig c;
    c.kind = "sgd", c.weight_decay = 0, c.grad_clip = clip, c.grad_clip_by = by;
    std::vector<NamedParameter> p{{"a", Variable::parameter(torch::zeros({40000}, at::kDouble)), Role::bias},
                                  {"b", Variable::parameter(torch::zeros({3}, at::kDouble)), Role::bias}};
    Optimizer optimizer(c, p);
    const double factor = scale != nullptr ? static_cast<double>(scale->scale) : 1;
    for (auto& q : p) q.parameter.leaf().grad = torch::linspace(-2, 3, q.parameter.numel(), at::kDouble) * factor;
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
        CHECK((value[i] - (clip > 0 ? g.clamp(-clip, clip) : g)).abs().max().item<double>() < 1e-14);
        at::Tensor one = torch::zeros_like(g).requires_grad_();
        one.mutable_grad() = g.clone();
        if (clip > 0) torch::nn::utils::clip_grad_norm_(std::vector<at::Tensor>{one}, clip);
        CHECK((parameter[i] - one.grad()).abs().max().item<double>() < 1e-14);
      }
    }
    CHECK(!step("parameter", 1, scale)[1].allclose(step("norm", 1, scale)[1]));  // the control
  }
}

TEST_CASE("the average of weights is its formula, also of parameters that stay", "[optimizers]") {
  for (const char* kind : {"adamw", "lamb", "muon", "adafactor", "adamw8bit"}) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      INFO(kind << " " << c10::toString(dtype));
      OptimConfig c;
      c.kind = kind, c.ema_decay = 0.7;
      std::vector<NamedParameter> p{{"w", Variable::parameter(torch::ones({70, 80}).to(dtype)), Role::weight},
                                    {"b", Variable::parameter(torch::ones({3}).to(dtype)), Role::bias}};
      Optimizer optimizer(c, p);
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
        // Rounded a few times a step.
        CHECK((slot.state.back().to(at::kDouble) - wanted[i]).abs().max().item<double>() <
              (dtype == at::kDouble ? 1e-14 : 2e-6));
      }
    }
  }
}

/// A rule from outside: its own method.
class Negative final : public Method {
 public:
  StateOf state(const NamedParameter&) const override { return {{}, true}; }
  UpdateRule rule() const override { return {}; }
  void update(std::vector<SlotUpdate>& slots, const UpdateRule& rule, StepControl*, bool) const override {
    for (const SlotUpdate& slot : slots) {
      for (int64_t i = 0; i < slot.args.n; ++i) static_cast<float*>(slot.args.param)[i] = static_cast<float>(-rule.lr);
    }
  }
};

TEST_CASE("an optimizer's name is its own", "[optimizers]") {
  CHECK_THAT(error_of([] {
               add_optimizer_kind({"adamw", "", [](const OptimConfig&) -> std::unique_ptr<Method> {
                                     return std::make_unique<Negative>();
                                   }});
             }),
             ContainsSubstring("there is an optimizer adamw already"));
}

}  // namespace
