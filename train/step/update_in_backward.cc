#include "train/step/update_in_backward.h"

#include <functional>
#include <vector>

#include "autograd/node.h"
#include "train/session/passes.h"
#include "train/step/shared_step.h"
#include "train/step/stepper.h"

namespace lathe {
namespace {

/// While alive, calls f(i) when the gradient of parameter i is complete, then frees that gradient.
class OnGradient {
 public:
  OnGradient(const std::vector<NamedParameter>& parameters, const std::function<void(size_t)>& f) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      hooks_.push_back(parameters[i].parameter.register_post_accumulate_grad_hook([f, i](Leaf& p) {
        f(i);
        p.grad.reset();
      }));
    }
  }
  ~OnGradient() {
    for (HookHandle& hook : hooks_) hook.remove();
  }
  OnGradient(const OnGradient&) = delete;
  OnGradient& operator=(const OnGradient&) = delete;

 private:
  std::vector<HookHandle> hooks_;
};

}  // namespace

at::Tensor run_updating_step(Session& s, const Batch& batch, int64_t step, double divisor,
                             double lr) {
  Optimizer& optimizer = s.optimizer;
  const StepRandom random = random_of(s.config, step, 0);
  DeferRunningStatistics statistics(batch_plan(s.config));
  StepOptions options{.step = step};
  optimizer.begin_stages();

  const OptimConfig& c = s.config.optim;
  if (c.grad_clip > 0 && c.grad_clip_by == "norm") {
    // This pass draws the same random numbers as the second one, and moves no running statistics.
    const ModeGuard guard;
    mode().is_recomputing = true;
    const OnGradient sum(s.params, [&](size_t i) { optimizer.sum_gradient(i); });
    options.loss = run_micro_batch(s, batch, divisor, random);
  }
  optimizer.decide(lr, options);

  const OnGradient update(s.params, [&](size_t i) { optimizer.update_parameter(i, options); });
  options.loss = run_micro_batch(s, batch, divisor, random);
  optimizer.end_stages(options);
  statistics.apply();
  return options.loss;
}

}  // namespace lathe
