// Optimizers: groups of slots that hold a parameter and its state together. Each update is torch.optim's, formula for
// formula, so that runs compare; the formula stands above its code in optimizer.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/config.h"

namespace lathe {

struct OptimConfig {
  LATHE_FIELD(std::string, kind, "adamw", "which optimizer",
              one_of({"sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw"}).fixed())
  LATHE_FIELD(double, lr, 1e-3, "learning rate at the schedule's height", at_least(0))
  LATHE_FIELD(double, beta1, 0.9, "adam, adamw: decay of the mean of gradients", below(0, 1))
  LATHE_FIELD(double, beta2, 0.95, "adam, adamw: decay of the mean of squares", below(0, 1))
  LATHE_FIELD(double, eps, 1e-8, "adam, adamw, rmsprop, adagrad: added to the denominator", at_least(0))
  LATHE_FIELD(double, momentum, 0.9, "momentum, rmsprop: decay of the velocity (rmsprop: 0 is plain)",
              below(0, 1).fixed())
  LATHE_FIELD(double, dampening, 0.0,
              "momentum: share of a gradient kept out of the velocity; as large as momentum: the exponential average",
              between(0, 1))
  LATHE_FIELD(bool, nesterov, false, "momentum: look ahead along the velocity (needs dampening 0)", anything())
  LATHE_FIELD(double, alpha, 0.99, "rmsprop: decay of the mean of squares", below(0, 1))
  LATHE_FIELD(bool, centered, false, "rmsprop: divide by the deviation instead of the root mean square",
              anything().fixed())
  LATHE_FIELD(double, lr_decay, 0.0, "adagrad: lr is divided by 1 + updates * lr_decay", at_least(0))
  LATHE_FIELD(double, initial_accumulator, 0.0, "adagrad: where the sum of squares starts", at_least(0).fixed())
  LATHE_FIELD(double, weight_decay, 0.1,
              "on parameters of 2 and more dimensions; decoupled in adamw, added to the gradient elsewhere",
              at_least(0))
  LATHE_FIELD(double, grad_clip, 1.0, "longest allowed norm of all gradients together; 0: no clipping", at_least(0))
};

/// A parameter with its state; state[i] is named by state_names()[i] and has the parameter's shape.
struct Slot {
  std::string path;
  Variable param;
  std::vector<at::Tensor> state;
};

struct Group {
  double weight_decay = 0;
  std::vector<Slot> slots;
};

class Optimizer {
 public:
  /// State is made at once, on the parameters' device and in their dtype, which must be float32 or float64. Weight
  /// decay goes to parameters of 2 and more dimensions. Updates are counted for all parameters together: one whose
  /// first gradient comes late is corrected as if it had had zeros before.
  Optimizer(const OptimConfig& config, const std::vector<NamedParameter>& parameters);

  /// One update of every parameter that has a gradient, with that gradient times `grad_scale` (clipping, unscaling).
  /// Writes the low-precision working copy of a parameter that has one. Gradients stay.
  void step(double lr, double grad_scale = 1);

  std::vector<Group>& groups() { return groups_; }
  const std::vector<Group>& groups() const { return groups_; }
  /// Names of a slot's state tensors, torch.optim's.
  const std::vector<std::string>& state_names() const { return state_names_; }
  /// Updates applied: Adam's bias correction counts these.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t n) { updates_ = n; }

 private:
  void update(Slot& slot, const at::Tensor& grad, double weight_decay, double lr);

  OptimConfig config_;
  std::vector<std::string> state_names_;
  std::vector<Group> groups_;
  int64_t updates_ = 0;
};

/// L2 norm of all gradients together, accumulated in float64 over the parameters; 0 without any.
double global_grad_norm(const Optimizer& optimizer);
/// What gradients of that norm are multiplied by so that it is at most `clip` (0: 1). torch.nn.utils.clip_grad_norm_.
double clip_scale(double norm, double clip);

}  // namespace lathe
