// Writes GGUF, the file format of llama.cpp (described in ggml's docs/gguf.md), in version 3. A
// file contains metadata, the names and shapes of tensors, then the bytes of each tensor. The bytes
// of a tensor begin at a multiple of 32.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/io/safetensors.h"

namespace lathe {

/// A metadata value.
using GGUFValue = std::variant<uint32_t, float, bool, std::string, std::vector<std::string>,
                               std::vector<int32_t>, std::vector<float>>;
/// Metadata in the order of the file.
using GGUFMetadata = std::vector<std::pair<std::string, GGUFValue>>;

/// Writes a GGUF file and syncs it. The dtype of each tensor must be the name of a GGUFType, and
/// the tensor's bytes must be blocks of that type. Tensors are written in the given order. Shapes
/// are given as in PyTorch. The file lists the sizes of a shape in reverse, the innermost size
/// first.
void write_gguf(const fs::path& path, const GGUFMetadata& metadata,
                const std::vector<TensorEntry>& tensors);

}  // namespace lathe
