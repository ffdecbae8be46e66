#include "tests/optim/optimizer_table.h"

#include "core/kernels/adam8bit.h"

namespace lathe::test {
namespace {

at::Tensor& kept(State& s, const char* name, const at::Tensor& like) {
  return s.try_emplace(name, torch::zeros_like(like)).first->second;
}
void mix(at::Tensor& average, double decay, const at::Tensor& x) {
  average = decay * average + (1 - decay) * x;
}

at::Tensor adam_direction(const at::Tensor& g, State& s, const Step& k) {
  mix(kept(s, "m", g), k.c.beta1, g);
  mix(kept(s, "v", g), k.c.beta2, g * g);
  const at::Tensor m = s["m"] / (1 - std::pow(k.c.beta1, k.t)),
                   v = s["v"] / (1 - std::pow(k.c.beta2, k.t));
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
  mix(kept(s, "m", g), k.c.beta1, g);
  mix(kept(s, "v", g), k.c.beta2, g * g);
  const auto mu = [&](double t) {
    return k.c.beta1 * (1 - 0.5 * std::pow(0.96, t * k.c.momentum_decay));
  };
  double product = 1;
  for (int i = 1; i <= k.t; ++i) product *= mu(i);
  const at::Tensor m_hat =
      mu(k.t + 1) * s["m"] / (1 - product * mu(k.t + 1)) + (1 - mu(k.t)) * g / (1 - product);
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
    mix(kept(s, "r", rows), b, rows);
    mix(kept(s, "c", columns), b, columns);
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

/// Computes Muon by applying the odd polynomial of Newton-Schulz directly to the singular values.
at::Tensor muon(const at::Tensor& p, const at::Tensor& g, State& s, const Step& k) {
  if (!k.role.hidden || p.dim() < 2 || p.numel() == 0)
    return p - k.lr * k.c.muon_rest_lr * (adam_direction(g, s, k) + k.wd * p);
  at::Tensor& m = kept(s, "m", g);
  mix(m, k.c.muon_momentum, g);
  const at::Tensor x = k.c.muon_nesterov ? (1 - k.c.muon_momentum) * g + k.c.muon_momentum * m : m;
  const at::Tensor matrix = x.reshape({x.size(0), -1});
  const auto [u, values, vh] = torch::linalg_svd(matrix / matrix.norm(), /*full_matrices=*/false);
  at::Tensor y = values;
  for (int64_t i = 0; i < k.c.muon_steps; ++i)
    y = 3.4445 * y - 4.7750 * y.pow(3) + 2.0315 * y.pow(5);
  const at::Tensor o = u.matmul(torch::diag(y)).matmul(vh).reshape(p.sizes());
  const auto rows = static_cast<double>(matrix.size(0)),
             columns = static_cast<double>(matrix.size(1));
  const double length = k.c.muon_scale == "rms" ? 0.2 * std::sqrt(std::max(rows, columns))
                                                : std::sqrt(std::max(1.0, rows / columns));
  return p - k.lr * k.wd * p - k.lr * length * o;
}

/// Returns a moment rounded to 8 bits: each block is divided by its largest magnitude and rounded
/// to the nearest level. A positive mean of squares stays positive.
at::Tensor through_8_bits(const at::Tensor& moment, int64_t block, bool with_sign) {
  const auto& list = dynamic_levels(with_sign);
  const at::Tensor levels =
      torch::tensor(at::ArrayRef<float>(list.data(), list.size())).to(at::kDouble);
  const at::Tensor flat = moment.reshape(-1);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : flat.split(block)) {
    const double most = part.abs().max().item<double>();
    if (most == 0) {
      parts.push_back(part);
      continue;
    }
    const at::Tensor x = part / most, above = torch::searchsorted(levels, x).clamp(1, 255),
                     below = above - 1;
    const auto off = [&](const at::Tensor& which) {
      return (levels.index_select(0, which) - x).abs();
    };
    at::Tensor nearest = torch::where(off(below) <= off(above), below, above);
    if (!with_sign) nearest = torch::where(x > 0, nearest.clamp_min(1), nearest);
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

}  // namespace

std::vector<Row> optimizer_rows() {
  namespace o = torch::optim;
  const auto beta = [](OptimConfig& c) { c.beta2 = 0.971; };
  const auto adams = [](const Step& k) {
    return o::AdamOptions(k.lr)
        .betas({k.c.beta1, k.c.beta2})
        .weight_decay(k.wd)
        .amsgrad(k.c.amsgrad);
  };
  const auto adamws = [](const Step& k) {
    return o::AdamWOptions(k.lr)
        .betas({k.c.beta1, k.c.beta2})
        .weight_decay(k.wd)
        .amsgrad(k.c.amsgrad);
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
      {"sgd",
       "",
       nothing,
       {},
       torchs<o::SGD, o::SGDOptions>(sgds),
       [](OptimConfig& c) { c.lr = 1.01; }},
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
       [](OptimConfig& c) {
         c.lr_decay = 0.1;
         c.initial_accumulator = 0.5;
       },
       {},
       torchs<o::Adagrad, o::AdagradOptions>([](const Step& k) {
         return o::AdagradOptions(k.lr)
             .lr_decay(0.1)
             .initial_accumulator_value(0.5)
             .eps(k.c.eps)
             .weight_decay(k.wd);
       }),
       [](OptimConfig& c) { c.lr_decay = 0.11; }},
      {"rmsprop",
       "centered, momentum",
       [](OptimConfig& c) { c.centered = true; },
       {},
       torchs<o::RMSprop, o::RMSpropOptions>([](const Step& k) {
         return o::RMSpropOptions(k.lr)
             .alpha(0.99)
             .momentum(0.9)
             .centered(true)
             .eps(k.c.eps)
             .weight_decay(k.wd);
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
      {"adamw8bit",
       "blocks of 2048",
       [](OptimConfig& c) { c.state_block = 2048; },
       adam8bit,
       {},
       beta},
      {"muon", "", nothing, muon, {}, [](OptimConfig& c) { c.muon_momentum = 0.94; }},
      {"muon",
       "spectral, plain",
       [](OptimConfig& c) {
         c.muon_scale = "spectral";
         c.muon_nesterov = false;
         c.muon_rest_lr = 0.5;
       },
       muon,
       {},
       [](OptimConfig& c) { c.muon_steps = 4; }},
  };
}

}  // namespace lathe::test
