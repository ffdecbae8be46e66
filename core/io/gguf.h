// GGUF, the files of llama.cpp (format description in ggml's docs/gguf.md), version 3: metadata,
// tensors' names and shapes, then their bytes, each at a multiple of 32.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/io/safetensors.h"

namespace lathe {

/// A value of the metadata.
using GGUFValue = std::variant<uint32_t, float, bool, std::string, std::vector<std::string>,
                               std::vector<int32_t>, std::vector<float>>;
/// Metadata in the order of the file.
using GGUFMetadata = std::vector<std::pair<std::string, GGUFValue>>;

/// Writes and syncs the file. Tensors are F32, F16 or BF16, and stand in the order given; the
/// format lists their sizes innermost first.
void write_gguf(const fs::path& path, const GGUFMetadata& metadata,
                const std::vector<TensorEntry>& tensors);

}  // namespace lathe
