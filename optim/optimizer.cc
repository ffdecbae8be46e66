#include "optim/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "autograd/node.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/mode.h"

namespace lathe {
namespace {

constexpr int64_t update_grain = 1 << 14;

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

UpdateRule rule_of(const OptimConfig& c, double lr) {
  UpdateRule r{.nesterov = c.nesterov,
               .lr = lr,
               .beta1 = c.beta1,
               .beta2 = c.beta2,
               .eps = c.eps,
               .momentum = c.momentum,
               .dampening = c.dampening,
               .alpha = c.alpha,
               .lr_decay = c.lr_decay};
  r.kind = c.kind == "sgd"        ? UpdateKind::sgd
           : c.kind == "momentum" ? UpdateKind::momentum
           : c.kind == "adagrad"  ? UpdateKind::adagrad
           : c.kind == "rmsprop"  ? UpdateKind::rmsprop
           : c.kind == "adam"     ? UpdateKind::adam
                                  : UpdateKind::adamw;
  return r;
}

int64_t chunks_of(const at::Tensor& t) { return (t.numel() + grad_sum_chunk - 1) / grad_sum_chunk; }

/// The kernels read and write by pointer, so what they are given must be what they take it for.
void check_slot(const Slot& slot) {
  const at::Tensor &p = slot.param.data(), &g = slot.param.grad();
  LATHE_CHECK(g.sizes() == p.sizes() && g.device() == p.device() && g.is_floating_point(),
              "optimizer: the gradient of ", slot.path, " is ", describe(g), " on ", g.device().str(),
              ", the parameter ", describe(p), " on ", p.device().str());
  LATHE_CHECK(g.is_contiguous() && p.is_contiguous(), "optimizer: ", slot.path, " or its gradient is not contiguous");
}

/// Says that the kernels wrote what a slot holds.
void bump_versions(const Slot& slot) {
  bump_version(slot.param.data());
  for (const auto& s : slot.state) bump_version(s);
  Precision& kept = slot.param.leaf().precision;
  if (!kept.low.defined()) return;
  bump_version(kept.low);
  kept.low_is_current(slot.param.data());
}

/// The kernel's view of a slot.
UpdateArgs args_of(const Slot& slot, const std::vector<std::string>& state_names, double weight_decay,
                   const std::optional<uint64_t>& rounding_seed) {
  const Leaf& leaf = slot.param.leaf();
  const at::Tensor &p = slot.param.data(), &low = leaf.precision.low;
  UpdateArgs a;
  a.param = p.data_ptr();
  a.grad = leaf.grad.const_data_ptr();
  for (size_t i = 0; i < slot.state.size(); ++i) {
    a.state[state_names[i] == "grad_avg" ? 2 : i] = slot.state[i].data_ptr();
  }
  if (low.defined()) {
    a.low = low.data_ptr();
    a.low_type = element_of(low.scalar_type());
  }
  a.param_type = element_of(p.scalar_type());
  a.grad_type = element_of(leaf.grad.scalar_type());
  a.n = p.numel();
  a.weight_decay = weight_decay;
  if (rounding_seed && a.param_type == Element::bf16) {
    a.stochastic = true;
    a.key = make_key(*rounding_seed, hash_name("stochastic rounding/" + slot.path));
  }
  return a;
}

}  // namespace

Optimizer::Optimizer(const OptimConfig& config, const std::vector<NamedParameter>& parameters,
                     std::optional<uint64_t> rounding_seed, const std::vector<GroupOptions>& own)
    : config_(config),
      rounding_seed_(rounding_seed),
      state_names_(names_of_state(config)),
      control_(parameters.empty() ? at::Device(at::kCPU) : parameters[0].parameter.data().device()) {
  const MemoryScope scope(Memory::optimizer);
  groups_ = {{.weight_decay = config.weight_decay}, {}};
  for (const auto& o : own) {
    groups_.push_back({.weight_decay = o.weight_decay.value_or(config.weight_decay), .lr_factor = o.lr_factor});
    groups_.push_back({.weight_decay = o.weight_decay.value_or(0), .lr_factor = o.lr_factor});
  }
  const auto group_of = [&](const NamedParameter& p) {
    const auto chooses = [&](const GroupOptions& o) { return o.which ? o.which(p) : matches(o.pattern, p.path); };
    const auto at = std::find_if(own.begin(), own.end(), chooses);
    const size_t pair = at == own.end() ? 0 : static_cast<size_t>(at - own.begin()) + 1;
    return 2 * pair + (p.role.decayed.value_or(p.parameter.dim() >= 2) ? 0 : 1);
  };
  int64_t chunks = 0;
  for (const auto& p : parameters) {
    const at::Tensor& data = p.parameter.data();
    chunks += chunks_of(data);
    Slot slot{p.path, p.parameter, {}};
    const auto options = data.options().dtype(data.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    for (const auto& name : state_names_) {
      slot.state.push_back(at::full(data.sizes(), name == "sum" ? config.initial_accumulator : 0.0, options));
    }
    groups_[group_of(p)].slots.push_back(std::move(slot));
  }
  for (size_t i = 0; i < own.size(); ++i) {
    LATHE_CHECK(!groups_[2 * i + 2].slots.empty() || !groups_[2 * i + 3].slots.empty(), "optimizer: the group of ",
                own[i].which ? "a predicate" : "\"" + own[i].pattern + "\"",
                " has no parameters; an earlier group may have taken them");
  }
  partials_ = at::empty({std::max<int64_t>(chunks, 1)}, control_.bytes().options().dtype(at::kDouble));
}

void Optimizer::sum_gradients() {
  chunks_ = 0;
  double* const sums = partials_.mutable_data_ptr<double>();
  std::vector<GradArgs> on_card;
  for (const auto& group : groups_) {
    for (const auto& slot : group.slots) {
      const at::Tensor& g = slot.param.grad();
      if (!g.defined()) continue;
      check_slot(slot);
      const GradArgs args{.grad = g.const_data_ptr(), .type = element_of(g.scalar_type()), .n = g.numel()};
      double* const own = sums + chunks_;
      const int64_t n = chunks_of(g);
      chunks_ += n;
      if (g.is_cuda()) {
        on_card.push_back(args);
        continue;
      }
      at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          own[i] = grad_sum_cpu(args.grad, args.type, i * grad_sum_chunk, std::min(args.n, (i + 1) * grad_sum_chunk));
        }
      });
    }
  }
  if (!on_card.empty()) cuda_api().grad_sum(on_card.data(), static_cast<int64_t>(on_card.size()), sums);
}

void Optimizer::step(double lr, const StepOptions& options) {
  const NoGrad no_grad;
  const bool cuda = partials_.is_cuda();
  sum_gradients();
  StepControl* control = control_.pointer();
  const StepRequest request{
      .rule = rule_of(config_, lr), .clip = config_.grad_clip, .step = options.step, .policy = options.scale_policy};
  const float* loss = options.loss.defined() ? options.loss.const_data_ptr<float>() : nullptr;
  (cuda ? cuda_api().decide : decide_cpu)(request, partials_.const_data_ptr<double>(), chunks_, loss, control,
                                          options.scale);
  std::vector<UpdateArgs> on_card;
  double factor = 1;
  const auto launch = [&] {
    if (on_card.empty()) return;
    cuda_api().update(on_card.data(), static_cast<int64_t>(on_card.size()), rule_of(config_, lr * factor), control);
    on_card.clear();
  };
  for (auto& group : groups_) {
    if (group.lr_factor != factor) launch();
    factor = group.lr_factor;
    const UpdateRule rule = rule_of(config_, lr * factor);
    for (auto& slot : group.slots) {
      if (!slot.param.grad().defined()) continue;
      const UpdateArgs args = args_of(slot, state_names_, group.weight_decay, rounding_seed_);
      if (cuda) {
        on_card.push_back(args);
      } else {
        at::parallel_for(0, args.n, update_grain,
                         [&](int64_t begin, int64_t end) { update_cpu(args, rule, control, begin, end); });
      }
      bump_versions(slot);
    }
  }
  launch();
}

}  // namespace lathe
