// The fp8 recipe of a config (amp.dtype = "fp8"), a transform that turns linear layers of the
// model's blocks into fp8 layers.
#pragma once

#include <optional>

#include "train/config/run_config.h"
#include "train/config/transform.h"

namespace lathe {

/// Converts the layers if amp.dtype is "fp8". Throws Exit::usage if the model has no repeated
/// blocks, or if a weight in them has a size that is not a multiple of 16.
void add_fp8_layers(Model& model, const TransformContext& context);
/// Returns a fault if a size is not one that fp8 matmuls on a GPU support, or if
/// amp.fp8_edge_blocks leaves no block for fp8; nullopt if there is none.
std::optional<ConfigFault> check_fp8(const RunConfig& config);

}  // namespace lathe
