#include "amp/grad_scaler.h"

#include <ATen/ops/empty.h>

#include <cstddef>
#include <cstring>

namespace lathe {

GradScaler::GradScaler(const ScalePolicy& policy, float scale, at::Device device) : policy_(policy) {
  static_assert(offsetof(ScaleState, scale) == 0);
  block_ = at::empty({sizeof(ScaleState)}, at::TensorOptions().dtype(at::kByte).device(device));
  scale_ = block_.slice(0, 0, sizeof(float)).view(at::kFloat).squeeze(0);
  load({.scale = scale});
}

std::optional<GradScaler> GradScaler::make(const AmpConfig& c, at::Device device) {
  if (c.scaler == "none" || (c.scaler == "auto" && c.dtype != "fp16")) return std::nullopt;
  return GradScaler({.dynamic = c.scaler != "fixed",
                     .growth_factor = c.growth_factor,
                     .backoff_factor = c.backoff_factor,
                     .growth_interval = c.growth_interval,
                     .min_scale = c.min_loss_scale,
                     .max_skips = c.max_skips},
                    static_cast<float>(c.loss_scale), device);
}

void GradScaler::prepare(StepOptions& options) const {
  options.scale = static_cast<ScaleState*>(block_.data_ptr());
  options.scale_policy = policy_;
}

ScaleState GradScaler::state() const {
  ScaleState s;
  const at::Tensor host = block_.to(at::kCPU);
  std::memcpy(&s, host.const_data_ptr(), sizeof s);
  return s;
}

void GradScaler::load(const ScaleState& state) {
  at::Tensor host = at::empty({sizeof state}, at::kByte);
  std::memcpy(host.mutable_data_ptr(), &state, sizeof state);
  block_.copy_(host);
}

}  // namespace lathe
