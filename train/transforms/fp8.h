// The fp8 recipe of a config (amp.dtype = "fp8") as a transform: linear layers of the model's
// blocks become fp8 layers.
#pragma once

#include <optional>

#include "train/config/run_config.h"
#include "train/config/transform.h"

namespace lathe {

/// Exit::usage where the model has no repeated blocks.
void add_fp8_layers(Model& model, const TransformContext& context);
/// What an fp8 GPU's products ask of sizes, and whether blocks are left to fp8.
std::optional<ConfigFault> check_fp8(const RunConfig& config);

}  // namespace lathe
