// Optimizers: groups of slots, each of which holds a parameter and its state. An update follows
// torch.optim if torch has that optimizer, otherwise the optimizer's paper. optim/method.h explains
// where the formulas are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "autograd/tensor_cut.h"
#include "core/device_value.h"
#include "core/element_range.h"
#include "core/kernels/update.h"
#include "optim/config.h"
#include "optim/method.h"
#include "optim/offload.h"

namespace lathe {

/// The complete tensor that a tensor of state belongs to, and the range of the complete tensor's
/// elements that this process keeps. The range has all elements unless the state is sharded among
/// processes.
struct StatePart {
  std::vector<int64_t> sizes;
  ElementRange own;
  size_t slot = 0, tensor = 0;  ///< indices of the slot and its tensor in StateOffload
  /// How the parameter is cut among tensor ranks; `sizes` then describes one part. Null: not cut.
  std::shared_ptr<const TensorCut> cut{};
};

/// A parameter with its state. Checkpoints store state[i] as names[i], the name in torch.optim.
struct Slot {
  std::string path;
  Variable param;
  std::vector<std::string> names;
  /// For each tensor of `state` except the moving average, its index in UpdateArgs::state. The
  /// average is last in `state` if there is one.
  std::vector<int> places;
  std::vector<at::Tensor> state;  ///< state tensors; on the meta device if the state is in a file
  std::vector<StatePart> parts;   ///< describes each tensor of `state`
  bool whole = false;             ///< see MethodState::whole
  size_t index = 0;               ///< index of the parameter in the constructor's list
  ElementRange own;               ///< elements that this process updates
};

/// Slots that share settings.
struct ParameterGroup {
  double weight_decay = 0;
  double lr_factor = 1;  ///< factor on the step's learning rate
  std::vector<Slot> slots{};
};

/// Options of a step; tensors and pointers are on the parameters' device.
struct StepOptions {
  int64_t step = 0;  ///< index of the step, from 0; an error that ends a run names `step` + 1
  at::Tensor
      loss{};  ///< [] float32; if given, a non-finite loss has the effect of a non-finite gradient
  ScaleState* scale = nullptr;  ///< the loss scale of the gradients; null: 1, and a non-finite
                                ///< gradient ends the run
  ScalePolicy scale_policy{};
  /// If updates are sharded among processes: for each of the constructor's parameters, the gradient
  /// of the elements that this process owns, 1-D; undefined for a parameter without a gradient.
  std::span<const at::Tensor> own_gradients{};
  /// If the parameters themselves are sharded: for each of the constructor's parameters, the
  /// elements that this process owns, which are updated instead of the parameter; undefined for a
  /// parameter that is complete.
  std::span<const at::Tensor> own_parameters{};
  /// Replaces a tensor by its sum over the processes that the updates are sharded among. Must be
  /// set if own_gradients is set.
  std::function<void(at::Tensor&)> sum_over_processes{};
  /// Replaces a tensor by its sum over the tensor ranks. Must be set if parameters are cut among
  /// the tensor ranks.
  std::function<void(at::Tensor&)> sum_over_tensor_ranks{};
  JoinParts join_tensor_ranks{};  ///< must be set if parameters are cut among tensor ranks
};

/// The parameters of a model, their state, and the step that updates them.
class Optimizer {
 public:
  /// Allocates the state on the parameters' device: in float64 for float64 parameters, in float32
  /// for other parameters (8-bit kinds: in bytes).
  ///
  /// bfloat16 parameters are rounded stochastically after an update. The random numbers depend on
  /// `rounding_seed`, the path, the element and the update. With nullopt, and for float16, rounding
  /// is to nearest.
  ///
  /// Weight decay applies to parameters with two or more dimensions, unless their roles decide
  /// otherwise. One count of updates serves all parameters. So a parameter whose first gradient
  /// comes late gets the same bias correction as if its earlier gradients had been zero.
  ///
  /// A parameter belongs to the first group that selects it. The groups of `own` come before the
  /// groups of config.groups. Throws Exit::usage if a group gets no parameter, or if the kind does
  /// not support the device.
  ///
  /// `shares`: for each parameter, the elements whose state this process keeps and which it
  /// updates. Empty: all elements of all parameters. A parameter of divisible_parameters() may be
  /// cut at multiples of grad_sum_chunk; any other parameter is owned completely or not at all.
  /// Throws Exit::usage if a parameter is cut among tensor ranks and its update needs the complete
  /// parameter.
  ///
  /// `offload`: if not empty, the state is in a scratch file in this folder (optim/offload.h).
  /// Updates are bitwise equal to updates with state in memory. This works only on CPUs. Throws
  /// FileError with Exit::io if the disk lacks the space, and Exit::usage if the optimizer has no
  /// state.
  Optimizer(const OptimConfig& config, const std::vector<NamedParameter>& parameters,
            std::optional<uint64_t> rounding_seed = std::nullopt,
            const std::vector<GroupOptions>& own = {}, const std::vector<ElementRange>& shares = {},
            const std::filesystem::path& offload = {});

  /// Updates every parameter that has a gradient, with that gradient unscaled and clipped. Also
  /// writes the parameter's low-precision working copy if it has one, and its average if
  /// config.ema_decay keeps one. Gradients are not changed. If any gradient is not finite, all
  /// parameters and states stay untouched. Does not wait for a GPU.
  void step(double lr, const StepOptions& options = {});

  // The next functions are the stages of a step whose gradients do not all exist at the same time
  // (memory.update_in_backward). These functions require that all state is in one process. Call
  // begin_stages(); sum_gradient() for each parameter, if gradients are clipped by their norm;
  // decide(); update_parameter() for each parameter; end_stages(). The result is bitwise equal to
  // the result of step(), with two exceptions. A gradient that is not finite leaves only its
  // parameter untouched, unless all gradients were summed before decide(). On a GPU, the norm may
  // differ in the last bit if a parameter has no gradient. `i` is the index of a parameter in the
  // constructor's list; its gradient must be complete.

  /// Begins a step: clears the sums of the previous step.
  void begin_stages();
  /// Sums the squares of the gradient of parameter i.
  void sum_gradient(size_t i);
  /// Decides from the sums so far whether the step is skipped, and the scale of its gradients.
  void decide(double lr, const StepOptions& options);
  /// Updates parameter i, whose gradient may be freed afterwards.
  void update_parameter(size_t i, const StepOptions& options);
  /// Updates the averages of parameters without a gradient. Records the norm of all gradients, and
  /// records that the step failed if the norm or options.loss is not finite.
  void end_stages(const StepOptions& options);

  /// Returns all groups: a pair with and without weight decay, and then such a pair for each entry
  /// of `own` and of config.groups. The settings of groups may be changed between steps.
  std::vector<ParameterGroup>& groups() { return groups_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  /// Returns the state that does not belong to a single parameter, by name. Checkpoints save this
  /// state as well.
  const std::vector<std::pair<std::string, at::Tensor>>& shared_state() const {
    return shared_state_;
  }
  /// Returns the FLOPs of an update's matrix products, such as Newton-Schulz iterations; 0 if there
  /// are none.
  double update_flops() const { return update_flops_; }
  /// Returns whether updates are sharded among processes.
  bool is_sharded() const { return is_sharded_; }
  /// Returns the state that is in a scratch file; null if the state is in memory.
  const StateOffload* offload() const { return offload_.get(); }
  /// Waits until the scratch file, if there is one, has all of the state. Throws the error of a
  /// failed read or write.
  void settle_offload() const;
  /// Returns a tensor of a slot's state or of shared_state(). If the state is in a file, returns a
  /// copy of the part that this process keeps, which `part` describes.
  at::Tensor read_state(const at::Tensor& state, const StatePart& part) const;
  /// For state in a file, calls `put` with the bytes of `part`; see StateOffload::read().
  void stream_state(const StatePart& part,
                    const std::function<void(std::span<const std::byte>)>& put) const;
  /// Sets a tensor of state, or the part of it that read_state() returns, to `values`. `values`
  /// must have the same number of elements and, if the state is in a file, be on the CPU.
  void write_state(const at::Tensor& state, const StatePart& part, const at::Tensor& values);
  /// Records that the caller skips the update of a step whose loss was scaled by `loss_scale`.
  void record_skipped_update(double loss_scale);
  /// Returns the result of the last step and the number of updates so far. Waits for a GPU.
  StepControl control() const { return control_.get(); }
  /// Returns whether the update of the last step was skipped, as int64 [] of 0 or 1 on the device
  /// of the parameters. Does not wait for a GPU.
  at::Tensor is_skipped() const;
  /// Sets the moving averages (optim.ema_decay) to the current values of the parameters. The
  /// constructor does this for parameters whose values exist by then.
  void start_averages();
  /// Sets the number of updates so far to n, for example after loading a checkpoint. Clears the
  /// record of a failed step.
  void set_updates(int64_t n);

 private:
  Slot make_slot(const NamedParameter& p, size_t index, ElementRange own);
  void sum_gradients(const StepOptions& options);
  void add_sums_of_tensor_ranks(const StepOptions& options);
  SlotUpdate update_of(const ParameterGroup& group, const Slot& slot, const at::Tensor& grad,
                       int64_t first_chunk, const StepOptions& options) const;
  void update_averages(const std::vector<SlotUpdate>& of);
  void update_all(std::vector<SlotUpdate>& updates, const std::vector<SlotUpdate>& stay);
  void offload_state(const std::filesystem::path& folder,
                     const std::vector<NamedParameter>& parameters);
  void update_offloaded(const std::vector<SlotUpdate>& updates,
                        const std::vector<SlotUpdate>& stay);
  SlotUpdate piece_of(const SlotUpdate& update, const StateOffload::Piece& piece,
                      std::byte* memory) const;

  OptimConfig config_;
  std::unique_ptr<Method> method_;
  bool is_sharded_;    // updates are sharded among processes
  bool is_offloaded_;  // the state is in a scratch file
  std::optional<uint64_t> rounding_seed_;
  std::vector<ParameterGroup> groups_;
  DeviceValue<StepControl> control_;
  std::vector<std::pair<std::string, at::Tensor>> shared_state_;
  at::Tensor partials_;  // float64: a sum for each chunk of each gradient, in the order of groups
                         // and slots
  int64_t chunks_ = 0;   // entries of partials_ in use
  UpdateRule rule_;      // rule of the step that was decided last

  // Members for the stages of a step: where each parameter's slot is, which entries of partials_ it
  // has, and whether its gradient was summed and its update applied.
  struct Stage {
    size_t group, slot;
    int64_t first_chunk;
    bool is_summed = false, is_updated = false;
  };
  std::vector<Stage> stages_;
  double update_flops_ = 0;
  std::unique_ptr<StateOffload> offload_;
};

/// Returns for each parameter whether processes may divide its update among themselves
/// (MethodState::divisible).
std::vector<bool> divisible_parameters(const OptimConfig& config,
                                       const std::vector<NamedParameter>& parameters);

/// The suffix of a parameter's path that names its moving average in checkpoints.
constexpr const char* average_name = "ema";

}  // namespace lathe
