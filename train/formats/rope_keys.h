// Declares functions that read and write keys of config.json for the families of the kind "llama":
// the keys for rotary positions, and the keys that select the layers with rotary positions or a
// sliding window. Includes no LibTorch header.
#pragma once

#include <string>
#include <vector>

#include "train/formats/llama_keys.h"

namespace lathe {

/// Sets the keys of rotary positions in `model` from rope_parameters, or from rope_theta and
/// rope_scaling, which transformers wrote before version 5. `context` is max_position_embeddings.
void read_rope(const LlamaVariant& variant, ConfigKeys& keys, int64_t context, ModelKeys& model);
/// Adds rope_theta and rope_scaling to a config.json.
void write_rope(const LlamaVariant& variant, const AnyConfig& own, Json& config);

/// Sets the keys in `model` for the layers that have rotary positions or a sliding window. Call it
/// after read_rope(), with n_layer and block_size in `model`. Throws Exit::checkpoint if the family
/// has no windows and the window is shorter than the context.
void read_layers(const LlamaVariant& variant, ConfigKeys& keys, ModelKeys& model);
/// Adds the keys that read_layers() reads to a config.json.
void write_layers(const LlamaVariant& variant, const AnyConfig& own, Json& config);
/// Returns `pattern` repeated until it has one digit for each layer of the model.
std::string digits_of_layers(const AnyConfig& own, const std::string& pattern);

}  // namespace lathe
