// Optimizers: groups of slots, each of which holds a parameter and its state. An update is
// torch.optim's where torch has one, otherwise its paper's; optim/method.h lists the files of the
// formulas.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/device_value.h"
#include "core/kernels/update.h"
#include "optim/config.h"
#include "optim/method.h"

namespace lathe {

/// A parameter with its state. state[i] is saved in checkpoints as names[i], torch.optim's name.
struct Slot {
  std::string path;
  Variable param;
  std::vector<std::string> names;
  std::vector<int> places;  ///< indices in UpdateArgs::state; the average, last in `state` if there
                            ///< is one, has none
  std::vector<at::Tensor> state;
  bool whole = false;  ///< as in StateOf
};

/// Slots that share settings.
struct ParameterGroup {
  double weight_decay = 0;
  double lr_factor = 1;  ///< times the step's learning rate
  std::vector<Slot> slots{};
};

/// Options of a step; tensors and pointers are on the parameters' device.
struct StepOptions {
  int64_t step = 0;  ///< from 0; named in the error that ends a run
  at::Tensor
      loss{};  ///< [] float32; if given, a non-finite loss has the effect of a non-finite gradient
  ScaleState* scale = nullptr;  ///< scale of the loss that the gradients carry; null: 1, and a
                                ///< non-finite gradient ends the run
  ScalePolicy scale_policy{};
};

/// The parameters of a model, their state, and the step that updates them.
class Optimizer {
 public:
  /// Allocates the state on the parameters' device: in float64 for float64 parameters, in float32
  /// for others (8-bit kinds: in bytes).
  ///
  /// bfloat16 parameters are rounded stochastically after an update. The random numbers depend on
  /// `rounding_seed`, the path, the element and the update. With nullopt, and for float16, rounding
  /// is to nearest.
  ///
  /// Weight decay applies to parameters of 2 and more dimensions unless their roles decide
  /// otherwise. Updates are counted for all parameters together: a parameter whose first gradient
  /// comes late gets the bias correction that it would have after gradients of zero.
  ///
  /// A parameter belongs to the first of `own`, then of config.groups, that chooses it. Throws
  /// Exit::usage if one of them gets no parameter or the kind has no code for the device.
  Optimizer(const OptimConfig& config, const std::vector<NamedParameter>& parameters,
            std::optional<uint64_t> rounding_seed = std::nullopt,
            const std::vector<GroupOptions>& own = {});

  /// Updates every parameter that has a gradient, with that gradient unscaled and clipped. Also
  /// writes the parameter's low-precision working copy if it has one, and its average if
  /// config.ema_decay keeps one. Gradients are not changed. If any gradient is not finite, all
  /// parameters and states stay untouched. Does not wait for a GPU.
  void step(double lr, const StepOptions& options = {});

  /// Returns the group with weight decay and the one without, then the same two for each of `own`
  /// and of config.groups. Their settings may be changed between steps.
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  /// Returns the state of all parameters together, by name, to be saved with the slots' state.
  const std::vector<std::pair<std::string, at::Tensor>>& shared_state() const {
    return shared_state_;
  }
  /// Returns the FLOPs of an update's matrix products, such as Newton-Schulz iterations; 0 if there
  /// are none.
  double update_flops() const { return update_flops_; }
  /// Returns the result of the last step and the number of updates so far. Waits for a GPU.
  StepControl control() const { return control_.get(); }
  /// Resumes after n updates, for example after loading. Forgets a step that ended the run.
  void set_updates(int64_t n);

 private:
  void sum_gradients();

  OptimConfig config_;
  std::unique_ptr<Method> method_;
  std::optional<uint64_t> rounding_seed_;
  std::vector<ParameterGroup> groups_;
  DeviceValue<StepControl> control_;
  std::vector<std::pair<std::string, at::Tensor>> shared_state_;
  at::Tensor partials_;  // float64: a sum for each chunk of each gradient, in the order of groups
                         // and slots
  int64_t chunks_ = 0;   // entries of partials_ in use
  double update_flops_ = 0;
};

/// The name that follows a parameter's path in checkpoints for its average.
constexpr const char* average_name = "ema";

}  // namespace lathe
