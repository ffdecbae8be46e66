#include "optim/optimizer.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>

#include "autograd/node.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/mode.h"

namespace lathe {
namespace {

std::vector<std::string> names_of_state(const OptimConfig& c) {
  if (c.kind == "momentum") return {"momentum_buffer"};
  if (c.kind == "adagrad") return {"sum"};
  if (c.kind == "adam" || c.kind == "adamw") return {"exp_avg", "exp_avg_sq"};
  std::vector<std::string> names;
  if (c.kind == "rmsprop") {
    names.push_back("square_avg");
    if (c.momentum > 0) names.push_back("momentum_buffer");
    if (c.centered) names.push_back("grad_avg");
  }
  return names;
}

}  // namespace

Optimizer::Optimizer(const OptimConfig& config, const std::vector<NamedParameter>& parameters)
    : config_(config), state_names_(names_of_state(config)) {
  const MemoryScope scope(Memory::optimizer);
  groups_.resize(2);
  groups_[0].weight_decay = config.weight_decay;
  for (const auto& p : parameters) {
    LATHE_CHECK(p.parameter.dtype() == at::kFloat || p.parameter.dtype() == at::kDouble, "optimizer: parameter ",
                p.path, " is ", describe(p.parameter.data()), "; masters must be float32 or float64");
    Slot slot{p.path, p.parameter, {}};
    for (const auto& name : state_names_) {
      slot.state.push_back(at::full_like(p.parameter.data(), name == "sum" ? config.initial_accumulator : 0.0));
    }
    groups_[p.parameter.dim() >= 2 ? 0 : 1].slots.push_back(std::move(slot));
  }
}

void Optimizer::step(double lr, double grad_scale) {
  const NoGrad no_grad;
  ++updates_;
  for (auto& group : groups_) {
    for (auto& slot : group.slots) {
      Leaf& leaf = slot.param.leaf();
      if (!leaf.grad.defined()) continue;
      at::Tensor grad = leaf.grad;
      if (grad_scale != 1 || grad.scalar_type() != slot.param.dtype()) {
        grad = grad.to(slot.param.dtype(), /*non_blocking=*/false, /*copy=*/true).mul_(grad_scale);
      }
      update(slot, grad, group.weight_decay, lr);
      if (leaf.low.defined()) leaf.low.copy_(slot.param.data());
    }
  }
}

// p: parameter, g: gradient, t: updates so far, this one included, wd: weight decay. Everywhere but in AdamW, g += wd p
// first.
void Optimizer::update(Slot& slot, const at::Tensor& grad, double wd, double lr) {
  const OptimConfig& c = config_;
  const at::Tensor& p = slot.param.data();
  auto& s = slot.state;
  const auto t = static_cast<double>(updates_);
  at::Tensor g = grad;
  if (wd != 0 && c.kind != "adamw") g = grad.add(p, wd);

  if (c.kind == "sgd") {
    // p -= lr g
    p.add_(g, -lr);
  } else if (c.kind == "momentum") {
    // v = momentum v + (1 - dampening) g (v = g at first);  p -= lr v, Nesterov: p -= lr (g + momentum v)
    // Polyak 1964; Sutskever et al. 2013
    updates_ == 1 ? s[0].copy_(g) : s[0].mul_(c.momentum).add_(g, 1 - c.dampening);
    p.add_(c.nesterov ? g.add(s[0], c.momentum) : s[0], -lr);
  } else if (c.kind == "adagrad") {
    // sum += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(sum) + eps). Duchi, Hazan and Singer 2011
    s[0].addcmul_(g, g);
    p.addcdiv_(g, s[0].sqrt().add_(c.eps), -lr / (1 + (t - 1) * c.lr_decay));
  } else if (c.kind == "rmsprop") {
    // q = alpha q + (1 - alpha) g^2;  d = sqrt(q) + eps, centered: sqrt(q - avg(g)^2) + eps;  p -= lr g / d, with
    // momentum: v = momentum v + g / d, p -= lr v. Tieleman and Hinton 2012; Graves 2013
    s[0].mul_(c.alpha).addcmul_(g, g, 1 - c.alpha);
    at::Tensor d;
    if (c.centered) {
      at::Tensor& average = s.back();
      average.lerp_(g, 1 - c.alpha);
      d = s[0].addcmul(average, average, -1).sqrt_().add_(c.eps);
    } else {
      d = s[0].sqrt().add_(c.eps);
    }
    if (c.momentum > 0) {
      s[1].mul_(c.momentum).addcdiv_(g, d);
      p.add_(s[1], -lr);
    } else {
      p.addcdiv_(g, d, -lr);
    }
  } else {
    // m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
    // p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps). Kingma and Ba 2015
    // AdamW: p -= lr wd p first. Loshchilov and Hutter 2019
    if (c.kind == "adamw" && wd != 0) p.mul_(1 - lr * wd);
    s[0].lerp_(g, 1 - c.beta1);
    s[1].mul_(c.beta2).addcmul_(g, g, 1 - c.beta2);
    const double correction1 = 1 - std::pow(c.beta1, t), correction2 = std::sqrt(1 - std::pow(c.beta2, t));
    p.addcdiv_(s[0], s[1].sqrt().div_(correction2).add_(c.eps), -lr / correction1);
  }
}

double global_grad_norm(const Optimizer& optimizer) {
  double sum = 0;
  std::vector<at::Tensor> norms;
  for (const auto& group : optimizer.groups()) {
    for (const auto& slot : group.slots) {
      const at::Tensor& g = slot.param.grad();
      if (g.defined())
        norms.push_back(at::linalg_vector_norm(g, 2, at::OptionalIntArrayRef(), false,
                                               g.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    }
  }
  // All norms are launched before the first is read, so a GPU is waited for once.
  for (const auto& n : norms) sum += n.item().toDouble() * n.item().toDouble();
  return std::sqrt(sum);
}

double clip_scale(double norm, double clip) { return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0; }

}  // namespace lathe
