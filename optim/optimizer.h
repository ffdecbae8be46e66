// Optimizers: groups of slots that hold a parameter and its state together. Each update is
// torch.optim's where torch has it, else its paper's; optim/method.h says where the formulas are.
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

/// A parameter with its state; state[i] is called names[i], torch.optim's name, in checkpoints.
struct Slot {
  std::string path;
  Variable param;
  std::vector<std::string> names;
  std::vector<int>
      places;  ///< in UpdateArgs::state; the average, last where there is one, has none
  std::vector<at::Tensor> state;
  bool whole = false;  ///< as in StateOf
};

/// Slots with settings of their own.
struct ParameterGroup {
  double weight_decay = 0;
  double lr_factor = 1;  ///< times the step's learning rate
  std::vector<Slot> slots{};
};

/// What a step does beside updating; tensors and pointers are of the parameters' device.
struct StepOptions {
  int64_t step = 0;   ///< from 0: named where the run ends
  at::Tensor loss{};  ///< [] float32; where given, a loss that is not finite counts as such a
                      ///< gradient does
  ScaleState* scale = nullptr;  ///< of the loss that gradients carry; null: 1, and a non-finite
                                ///< gradient ends the run
  ScalePolicy scale_policy{};
};

/// The parameters of a model, their state, and the step that updates them.
class Optimizer {
 public:
  /// State is made at once, on the parameters' device, in float64 for float64 parameters and in
  /// float32 for others (8-bit kinds: in bytes). bfloat16 parameters are rounded stochastically
  /// after an update, with random numbers of `rounding_seed`, their path, the element and the
  /// update; nullopt, and float16: to nearest. Weight decay goes to parameters of 2 and more
  /// dimensions, unless their roles say otherwise. Updates are counted for all parameters together:
  /// one whose first gradient comes late is corrected as if it had had zeros before. A parameter
  /// belongs to the first of `own`, then of config.groups, that chooses it; Exit::usage where one
  /// of them is left without any, or the kind has no code for the device.
  Optimizer(const OptimConfig& config, const std::vector<NamedParameter>& parameters,
            std::optional<uint64_t> rounding_seed = std::nullopt,
            const std::vector<GroupOptions>& own = {});

  /// One update of every parameter that has a gradient, with that gradient unscaled and clipped;
  /// writes the low-precision working copy of a parameter that has one, and its average where
  /// config.ema_decay keeps one. Gradients stay as they are. A gradient that is not finite anywhere
  /// leaves all parameters and states untouched. Does not wait for a GPU.
  void step(double lr, const StepOptions& options = {});

  /// Those with weight decay, those without, and the same two for each of `own` and of
  /// config.groups. Their settings may be changed between steps.
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  /// State of all parameters together, by name, to be saved with the slots'.
  const std::vector<std::pair<std::string, at::Tensor>>& shared_state() const {
    return shared_state_;
  }
  /// FLOPs of the matrix products of an update, as Newton-Schulz iterations; 0 where there are
  /// none.
  double update_flops() const { return update_flops_; }
  /// What the last step did, and the number of updates so far. Waits for a GPU.
  StepControl control() const { return control_.get(); }
  /// Goes on after n updates, as one that was loaded; a step that ended the run is forgotten.
  void set_updates(int64_t n);

 private:
  void sum_gradients();

  OptimConfig config_;
  std::unique_ptr<Method> method_;
  std::optional<uint64_t> rounding_seed_;
  std::vector<ParameterGroup> groups_;
  DeviceValue<StepControl> control_;
  std::vector<std::pair<std::string, at::Tensor>> shared_state_;
  at::Tensor partials_;  // float64, a sum for each chunk of each gradient, in the order of groups
                         // and slots
  int64_t chunks_ = 0;   // of them in use
  double update_flops_ = 0;
};

/// Where a parameter's average is kept: the name that follows its path in checkpoints.
constexpr const char* average_name = "ema";

}  // namespace lathe
