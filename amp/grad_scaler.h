// Loss scaling for fp16, whose small gradients would become zero: backward starts from the scale
// instead of 1, the optimizer step divides it out again, and a step whose gradients overflowed is
// skipped. Micikevicius et al. 2018, section 3.2; the dynamic rule is torch.amp.GradScaler's.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "amp/amp.h"
#include "optim/optimizer.h"

namespace lathe {

class GradScaler {
 public:
  GradScaler(const ScalePolicy& policy, float scale, at::Device device);
  /// Returns the scaler of a config, if it asks for one.
  static std::optional<GradScaler> make(const AmpConfig& config, at::Device device);

  /// Returns the gradient of the loss that backward begins with: [] float32 on the device. It
  /// follows the scale.
  const at::Tensor& scale() const { return scale_; }
  /// Sets the options that Optimizer::step needs to unscale, skip, and move the scale.
  void prepare(StepOptions& options) const;
  /// Returns the current state. Waits for a GPU.
  ScaleState state() const { return state_.get(); }
  /// Resumes from a saved state.
  void load(const ScaleState& state) { state_.set(state); }

 private:
  ScalePolicy policy_;
  DeviceValue<ScaleState> state_;
  at::Tensor scale_;  // its first member
};

}  // namespace lathe
