// Declares the keys and tensors that GGUF has for Llama and the families with the same computation.
// Includes no LibTorch header.
#pragma once

#include "train/formats/family.h"

namespace lathe {

/// Returns the GGUF metadata of a model (Family::gguf). Its keys lack the prefix that names the
/// architecture: "block_count", not "llama.block_count". Throws Exit::usage if the sliding window
/// is shorter than the context, or if the model has YaRN with rope_truncate = false.
GGUFMetadata llama_gguf(const AnyConfig& own);
/// Returns the names and values of the vectors that a GGUF file holds besides the parameters
/// (Family::gguf_tensors). A model with llama3's scaling has rope_freqs.weight, the divisor of the
/// angle of each pair of rotary channels. Other models have none.
std::vector<std::pair<std::string, std::vector<float>>> llama_gguf_tensors(const AnyConfig& own);
/// Returns the keys of [model] for a file's metadata and tensors: the inverse of llama_gguf() and
/// llama_gguf_tensors(). Leaves out qkv_bias and qk_norm, which depend on the family; the caller
/// sets them. `most` is the wanted context length, or 0 for the file's context length. Throws the
/// errors of ConfigKeys and context_of().
ModelKeys read_llama_gguf(ConfigKeys& keys, const GGUFFacts& facts, int64_t most);

}  // namespace lathe
