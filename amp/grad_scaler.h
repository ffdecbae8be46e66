// Implements loss scaling for float16, in which small gradients would underflow to zero. The
// backward pass starts with the scale as the gradient of the loss, instead of 1, and the optimizer
// step divides the gradients by the scale. A step whose gradients overflowed is skipped. See
// Micikevicius et al. 2018, section 3.2. A dynamic loss scale follows the rule of
// torch.amp.GradScaler.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "amp/amp.h"
#include "optim/optimizer.h"

namespace lathe {

class GradScaler {
 public:
  /// Creates a scaler that begins with the loss scale `scale` and keeps its state on `device`.
  GradScaler(const ScalePolicy& policy, float scale, at::Device device);
  /// Returns the scaler for a config, or nullopt if the config has no loss scaling.
  static std::optional<GradScaler> make(const AmpConfig& config, at::Device device);

  /// Returns the current loss scale, a zero-dimensional float32 tensor on the device. Pass it to
  /// backward() as the gradient of the loss. Steps update the value of this tensor.
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
