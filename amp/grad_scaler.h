// Loss scaling for float16, in which small gradients would underflow to zero. Backward starts from
// the scale instead of 1, and the optimizer step divides the gradients by it. A step whose
// gradients overflowed is skipped. See Micikevicius et al. 2018, section 3.2. The dynamic rule is
// that of torch.amp.GradScaler.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "amp/amp.h"
#include "optim/optimizer.h"

namespace lathe {

class GradScaler {
 public:
  GradScaler(const ScalePolicy& policy, float scale, at::Device device);
  /// Returns the scaler for a config, or nullopt if the config has no loss scaling.
  static std::optional<GradScaler> make(const AmpConfig& config, at::Device device);

  /// Returns the gradient of the loss that backward begins with, a [] float32 tensor on the device.
  /// The tensor always holds the current scale.
  const at::Tensor& scale() const { return scale_; }
  /// Sets the options with which Optimizer::step unscales gradients, skips a step, and updates the
  /// scale.
  void prepare(StepOptions& options) const;
  /// Returns the current state. Synchronizes the GPU.
  ScaleState state() const { return state_.get(); }
  /// Resumes from a saved state.
  void load(const ScaleState& state) { state_.set(state); }

 private:
  ScalePolicy policy_;
  DeviceValue<ScaleState> state_;
  at::Tensor scale_;  // a view of the state's first member
};

}  // namespace lathe
