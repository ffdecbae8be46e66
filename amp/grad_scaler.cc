#include "amp/grad_scaler.h"

#include <cstddef>

namespace lathe {

GradScaler::GradScaler(const ScalePolicy& policy, float scale, at::Device device)
    : policy_(policy), state_(device, {.scale = scale}) {
  static_assert(offsetof(ScaleState, scale) == 0);
  scale_ = state_.bytes().slice(0, 0, sizeof(float)).view(at::kFloat).squeeze(0);
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
  options.scale = state_.pointer();
  options.scale_policy = policy_;
}

}  // namespace lathe
