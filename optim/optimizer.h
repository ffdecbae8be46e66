// Optimizers: groups of slots that hold a parameter and its state together. Each update is torch.optim's, formula for
// formula, so that runs compare; the formulas are in core/kernels/update_math.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/config.h"
#include "core/device_value.h"
#include "core/kernels/update.h"

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

struct ParameterGroup {
  double weight_decay = 0;
  double lr_factor = 1;  ///< times the step's learning rate
  std::vector<Slot> slots{};
};

/// Settings of some parameters' own: `{.pattern = "head.*", .lr_factor = 0.1}`.
struct GroupOptions {
  std::string pattern{};                                         ///< of paths, see matches()
  std::function<bool(const NamedParameter& parameter)> which{};  ///< where set, chooses instead of the pattern
  double lr_factor = 1;                                          ///< times the step's learning rate
  std::optional<double> weight_decay{};                          ///< nullopt: as for other parameters
};

/// What a step does beside updating; tensors and pointers are of the parameters' device.
struct StepOptions {
  int64_t step = 0;             ///< from 0: named where the run ends
  at::Tensor loss{};            ///< [] float32; where given, a loss that is not finite counts as such a gradient does
  ScaleState* scale = nullptr;  ///< of the loss that gradients carry; null: 1, and a non-finite gradient ends the run
  ScalePolicy scale_policy{};
};

class Optimizer {
 public:
  /// State is made at once, on the parameters' device, in float64 for float64 parameters and in float32 for others.
  /// bfloat16 parameters are rounded stochastically after an update, with random numbers of `rounding_seed`, their
  /// path, the element and the update; nullopt, and float16: to nearest. Weight decay goes to parameters of 2 and more
  /// dimensions, unless their roles say otherwise. Updates are counted for all parameters together: one whose first
  /// gradient comes late is corrected as if it had had zeros before. A parameter belongs to the first of `own` that
  /// chooses it; an error where one of them is left without any.
  Optimizer(const OptimConfig& config, const std::vector<NamedParameter>& parameters,
            std::optional<uint64_t> rounding_seed = std::nullopt, const std::vector<GroupOptions>& own = {});

  /// One update of every parameter that has a gradient, with that gradient unscaled and clipped; writes the
  /// low-precision working copy of a parameter that has one. Gradients stay as they are. A gradient that is not finite
  /// anywhere leaves all parameters and states untouched. Does not wait for a card.
  void step(double lr, const StepOptions& options = {});

  /// Those with weight decay, those without, and the same two for each of `own`. Their settings may be changed between
  /// steps.
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  /// Names of a slot's state tensors, torch.optim's.
  const std::vector<std::string>& state_names() const { return state_names_; }
  /// What the last step did, and the number of updates so far. Waits for a card.
  StepControl control() const { return control_.get(); }
  void set_updates(int64_t n) { control_.set({.updates = n}); }

 private:
  void sum_gradients();

  OptimConfig config_;
  std::optional<uint64_t> rounding_seed_;
  std::vector<std::string> state_names_;
  std::vector<ParameterGroup> groups_;
  DeviceValue<StepControl> control_;
  at::Tensor partials_;  // float64, a sum for each chunk of each gradient
  int64_t chunks_ = 0;   // of them in use
};

}  // namespace lathe
