#include "core/kernels/lamb.h"

#include <cmath>

#include "core/kernels/rules.h"
#include "optim/methods/pieces.h"
#include "optim/methods/table.h"

namespace lathe {
namespace {

/// LAMB, see core/kernels/lamb.h. The trust ratio is 1 if either norm is 0.
class Lamb final : public Method {
 public:
  explicit Lamb(const OptimConfig& config) : rule_(rule_of(config)) {
    rule_.kind = rule_kind<LambApply>;
  }
  StateOf state(const NamedParameter& p) const override {
    return state_of_rule(rule_, p.parameter.data());
  }
  UpdateRule rule() const override { return rule_; }

  void update(std::vector<SlotUpdate>& slots, const UpdateRule& rule, StepControl* control,
              bool) const override {
    for (SlotUpdate& slot : slots) {
      UpdateArgs& a = slot.args;
      std::vector<LambSums> parts(static_cast<size_t>((a.n + grad_sum_chunk - 1) / grad_sum_chunk));
      each_piece(a.n, grad_sum_chunk, [&](int64_t i, int64_t begin, int64_t end) {
        parts[static_cast<size_t>(i)] = lamb_moments_cpu(a, rule, *control, begin, end);
      });
      LambSums sums;
      for (const LambSums& s : parts) sums.param += s.param, sums.direction += s.direction;
      if (sums.param > 0 && sums.direction > 0)
        a.lr_scale *= std::sqrt(sums.param / sums.direction);
    }
    update_elements(slots, rule, control, false);
  }

 private:
  UpdateRule rule_;
};

}  // namespace

std::unique_ptr<Method> make_lamb(const OptimConfig& config) {
  return std::make_unique<Lamb>(config);
}

}  // namespace lathe
