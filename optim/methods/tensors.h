// Declares updates of whole tensors by ATen's ops, on any device. The methods of this folder use
// them on GPUs. On CPUs, the methods have kernels, and use ATen's ops only if train.kernels is
// "aten".
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "optim/method.h"

namespace lathe {

/// One parameter of a step as tensors that share its memory. The device decides whether the step is
/// skipped and by which factor gradients are multiplied, so these numbers are tensors too.
class SlotTensors {
 public:
  /// The arguments must outlive this object.
  SlotTensors(const SlotUpdate& slot, const UpdateRule& rule, StepControl* control,
              at::Device device);

  /// Returns the gradient, unscaled and clipped, in the dtype of the state.
  at::Tensor gradient() const;
  /// Returns the parameter in the dtype of the state. If the parameter has that dtype, the result
  /// shares its memory.
  at::Tensor parameter() const;
  /// Returns a tensor that shares the memory of state `place`, an index in UpdateArgs::state.
  at::Tensor state(int place, at::IntArrayRef sizes, at::ScalarType dtype) const;
  at::Tensor state(int place, at::IntArrayRef sizes) const { return state(place, sizes, dtype_); }
  /// Sets a tensor of the state, unless the step is skipped.
  void set(const at::Tensor& state, const at::Tensor& value) const;
  /// Returns a member of the step's StepControl, float64 [].
  at::Tensor number(double StepControl::* member) const;
  /// Returns the number of updates including this one, float64 [].
  at::Tensor updates() const;

  /// Sets p = (1 - lr weight_decay) p - lr length direction, and then the slot's working copy and
  /// average, unless the step is skipped. `direction` has the state's dtype. `length` is a factor
  /// whose value the host knows.
  void descend(const at::Tensor& direction, double weight_decay, double length = 1) const;

 private:
  at::Tensor at_address(const void* address, at::IntArrayRef sizes, at::ScalarType dtype) const;

  const SlotUpdate& slot_;
  const UpdateRule& rule_;
  StepControl* control_;
  at::Device device_;
  at::ScalarType dtype_;  // dtype of the state
};

/// Returns the device on which a method updates parameters by ATen's ops, or nullopt if the method
/// uses its CPU kernels. `cuda` is whether the parameters are on a GPU.
std::optional<at::Device> device_of_tensors(bool cuda);
/// Returns the Frobenius norm, float64 [].
at::Tensor norm_of(const at::Tensor& t);

}  // namespace lathe
