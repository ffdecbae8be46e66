#include "core/kernels/lamb.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "core/kernels/rules.h"
#include "optim/methods/pieces.h"
#include "optim/methods/table.h"
#include "optim/methods/tensors.h"

namespace lathe {
namespace {

/// Sums `own` over the tensor ranks that have parts of the slot's parameter. `own` is 1-D and holds
/// numbers about this rank's part. The result is bitwise equal on all ranks.
at::Tensor sum_of_parts(const SlotUpdate& slot, const at::Tensor& own) {
  const int64_t parts = slot.cut->parts;
  const TensorCut all{.sections = {parts * own.numel()}, .part = slot.cut->part, .parts = parts};
  return (*slot.join)(own, all).view({parts, own.numel()}).sum(0);
}

/// LAMB, see core/kernels/lamb.h. The trust ratio is 1 if either norm is 0.
class Lamb final : public Method {
 public:
  explicit Lamb(const OptimConfig& config) : rule_(rule_of(config)) {
    rule_.kind = rule_kind<LambApply>;
  }
  MethodState state(const NamedParameter& p) const override {
    MethodState state = state_of_rule(rule_, p.parameter.data());
    state.joins_parts = true;
    return state;
  }
  UpdateRule rule() const override { return rule_; }

  bool runs_on_gpu() const override { return true; }

  void update(std::vector<SlotUpdate>& slots, const UpdateRule& rule, StepControl* control,
              bool cuda) const override {
    if (const auto device = device_of_tensors(cuda)) {
      for (const SlotUpdate& slot : slots) {
        if (slot.args.n > 0) update_by_tensors(slot, rule, control, *device);
      }
      return;
    }

    for (SlotUpdate& slot : slots) {
      UpdateArgs& a = slot.args;
      std::vector<LambSums> parts(static_cast<size_t>((a.n + grad_sum_chunk - 1) / grad_sum_chunk));
      each_piece(a.n, grad_sum_chunk, [&](int64_t i, int64_t begin, int64_t end) {
        parts[static_cast<size_t>(i)] = lamb_moments_cpu(a, rule, *control, begin, end);
      });
      LambSums sums;
      for (const LambSums& s : parts) {
        sums.param += s.param;
        sums.direction += s.direction;
      }
      if (slot.cut != nullptr) {
        const at::Tensor all = sum_of_parts(slot, at::tensor({sums.param, sums.direction}));
        sums = {all.const_data_ptr<double>()[0], all.const_data_ptr<double>()[1]};
      }
      if (sums.param > 0 && sums.direction > 0)
        a.lr_scale *= std::sqrt(sums.param / sums.direction);
    }
    update_elements(slots, rule, control, false);
  }

 private:
  /// Does the same as update() for one parameter, by ATen's ops.
  static void update_by_tensors(const SlotUpdate& slot, const UpdateRule& rule,
                                StepControl* control, at::Device device) {
    const SlotTensors of(slot, rule, control, device);
    const at::Tensor g = of.gradient(), p = of.parameter();
    const at::Tensor m = of.state(0, slot.sizes), v = of.state(1, slot.sizes);
    const at::ScalarType dtype = g.scalar_type();
    const at::Tensor mean = rule.beta1 * m + (1 - rule.beta1) * g,
                     square = rule.beta2 * v + (1 - rule.beta2) * g * g;
    of.set(m, mean);
    of.set(v, square);

    const auto number = [&](double StepControl::* member) { return of.number(member).to(dtype); };
    const at::Tensor u = mean / number(&StepControl::correction1) /
                             (square.sqrt() / number(&StepControl::correction2) + rule.eps) +
                         slot.args.weight_decay * p;
    at::Tensor norms = at::stack({norm_of(p), norm_of(u)});
    if (slot.cut != nullptr) norms = sum_of_parts(slot, norms.square()).sqrt();
    const at::Tensor of_p = norms[0], of_u = norms[1];
    const at::Tensor ratio =
        at::where(of_p.gt(0).logical_and(of_u.gt(0)), of_p / of_u, at::ones_like(of_p));
    of.descend(u * ratio.to(dtype), /*weight_decay=*/0);
  }

  UpdateRule rule_;
};

}  // namespace

std::unique_ptr<Method> make_lamb(const OptimConfig& config) {
  return std::make_unique<Lamb>(config);
}

}  // namespace lathe
