// The keys and tensors that GGUF has for Llama and the families with the same computation. No
// LibTorch header.
#pragma once

#include "train/formats/family.h"

namespace lathe {

/// Returns the architecture's metadata, without its name in the keys (Family::gguf). Throws
/// Exit::usage for a sliding window or a scaling of positions for which GGUF has no form.
GGUFMetadata llama_gguf(const AnyConfig& own);
/// Returns rope_freqs.weight for a model with llama3's scaling (Family::gguf_tensors).
std::vector<std::pair<std::string, std::vector<float>>> llama_gguf_tensors(const AnyConfig& own);
/// Reads what llama_gguf() and llama_gguf_tensors() write. The caller sets qkv_bias and qk_norm,
/// which depend on the family.
ModelKeys read_llama_gguf(ConfigKeys& keys, const GGUFFacts& facts, int64_t most);

}  // namespace lathe
