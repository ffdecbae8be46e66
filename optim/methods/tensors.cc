#include "optim/methods/tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cstddef>

#include "core/dtype.h"
#include "core/kernels/gemm.h"
#include "core/kernels/rules.h"

namespace lathe {

std::optional<at::Device> device_of_tensors(bool cuda) {
  if (cuda) return at::kCUDA;
  return kernels_enabled() ? std::nullopt : std::optional<at::Device>(at::kCPU);
}

at::Tensor norm_of(const at::Tensor& t) {
  return at::linalg_vector_norm(t, 2, std::nullopt, /*keepdim=*/false, at::kDouble);
}

SlotTensors::SlotTensors(const SlotUpdate& slot, const UpdateRule& rule, StepControl* control,
                         at::Device device)
    : slot_(slot),
      rule_(rule),
      control_(control),
      device_(device),
      dtype_(dtype_of(state_type(slot.args.param_type))) {}

at::Tensor SlotTensors::at_address(const void* address, at::IntArrayRef sizes,
                                   at::ScalarType dtype) const {
  return at::from_blob(const_cast<void*>(address), sizes,
                       at::TensorOptions().dtype(dtype).device(device_));
}

at::Tensor SlotTensors::number(double StepControl::* member) const {
  return at_address(&(control_->*member), {}, at::kDouble);
}

at::Tensor SlotTensors::updates() const {
  return at_address(&control_->updates, {}, at::kLong).to(at::kDouble);
}

at::Tensor SlotTensors::gradient() const {
  const UpdateArgs& a = slot_.args;
  const auto options = at::TensorOptions().dtype(dtype_).device(device_);
  if (a.grad == nullptr) return at::zeros(slot_.sizes, options);

  at::Tensor g = at_address(a.grad, slot_.sizes, dtype_of(a.grad_type)).to(dtype_);
  if (rule_.clip_value > 0) {
    const at::Tensor most = (number(&StepControl::loss_scale) * rule_.clip_value).to(dtype_);
    g = at::minimum(at::maximum(g, -most), most);
  }

  // The scale is computed as in grad_scale_of() in core/kernels/update_math.h.
  at::Tensor scale = number(&StepControl::grad_scale);
  if (rule_.clip_parameter > 0 && a.sums != nullptr) {
    const at::Tensor norm =
        at_address(a.sums, {a.chunks}, at::kDouble).sum().sqrt() / number(&StepControl::loss_scale);
    scale = scale * (rule_.clip_parameter / (norm + 1e-6)).clamp_max(1);
  }
  return g * scale.to(dtype_);
}

at::Tensor SlotTensors::parameter() const {
  return at_address(slot_.args.param, slot_.sizes, dtype_of(slot_.args.param_type)).to(dtype_);
}

at::Tensor SlotTensors::state(int place, at::IntArrayRef sizes, at::ScalarType dtype) const {
  return at_address(slot_.args.state[place], sizes, dtype);
}

void SlotTensors::set(const at::Tensor& state, const at::Tensor& value) const {
  const at::Tensor is_skipped = at_address(&control_->skip, {}, at::kLong).ne(0);
  state.copy_(at::where(is_skipped, state, value));
}

void SlotTensors::descend(const at::Tensor& direction, double weight_decay, double length) const {
  UpdateArgs args = slot_.args;
  const at::Tensor contiguous = direction.contiguous();
  args.grad = contiguous.const_data_ptr();
  args.grad_type = element_of(dtype_);
  // Weight decay is multiplied by lr_scale as well, so divide the weight decay by `length`.
  args.lr_scale *= length;
  args.weight_decay = weight_decay / length;

  UpdateRule rule = rule_;
  rule.kind = rule_kind<Descend>;
  update_elements({{.args = args, .sizes = slot_.sizes, .whole = true}}, rule, control_,
                  device_.is_cuda());
}

}  // namespace lathe
