// Declares the fp8 recipe of a config (amp.dtype = "fp8"), a transform that converts linear layers
// of the model's blocks to fp8 layers.
#pragma once

#include <optional>

#include "train/config/run_config.h"
#include "train/config/transform.h"

namespace lathe {

/// Converts the layers if amp.dtype is "fp8". Throws Exit::usage if the model has no repeated
/// blocks, or if a weight in the blocks has a size that is not a multiple of 16.
void add_fp8_layers(Model& model, const TransformContext& context);
/// Returns a fault if fp8 matmuls on a GPU do not support a size, or if amp.fp8_edge_blocks leaves
/// no block for fp8. Returns nullopt if there is no fault.
std::optional<ConfigFault> check_fp8(const RunConfig& config);

}  // namespace lathe
