// Declares the transform for amp.dtype = "fp8", which converts linear layers of the model's blocks
// to fp8 layers.
#pragma once

#include <optional>

#include "train/config/run_config.h"
#include "train/config/transform.h"

namespace lathe {

/// Converts the layers if amp.dtype is "fp8". Throws Exit::usage if the model has no repeated
/// blocks, or if the weight of a converted layer has a size that is not a multiple of 16.
void add_fp8_layers(Model& model, const TransformContext& context);
/// Returns a fault if the model does not model tokens or has no repeated blocks, if fp8 matmuls on
/// a GPU do not support a size, or if amp.fp8_edge_blocks leaves no block for fp8. Returns nullopt
/// if there is no fault.
std::optional<ConfigFault> check_fp8(const RunConfig& config);

}  // namespace lathe
