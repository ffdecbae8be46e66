// The element types of GGUF files: floats, and ggml's blocks of quantized numbers, whose layouts
// are in ggml-quants.c of ggml (https://github.com/ggml-org/ggml).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lathe {

/// An element type. A row of a tensor is a sequence of blocks, so its length is a multiple of
/// `elements`.
struct GGUFType {
  const char* name;  ///< ggml's name, also in TensorEntry::dtype: "F32", "Q4_K"
  uint32_t number;   ///< of the type in files
  uint32_t of_file;  ///< general.file_type of a file whose matrices have this type
  int64_t elements;  ///< number of elements in a block
  size_t bytes;      ///< size of a block
  /// Converts a block to `elements` float32 numbers, exactly.
  void (*read)(const std::byte* block, float* values);
  /// Converts `elements` finite numbers to a block, with the rounding of ggml's reference. Returns
  /// false if the block's scale is beyond float16's range. Null for types to which this build does
  /// not quantize.
  bool (*write)(const float* values, std::byte* block);

  /// Returns whether elements are integers that share a scale, not floats.
  bool is_quantized() const { return elements > 1; }
};

/// Returns all types that this build reads.
std::span<const GGUFType> gguf_types();
/// Returns the type with that name, or null.
const GGUFType* find_gguf_type(std::string_view name);
/// Returns the type with that number in files, or null.
const GGUFType* find_gguf_type(uint32_t number);

/// Converts complete blocks to float32; `values` must have room for all elements.
void read_blocks(const GGUFType& type, std::span<const std::byte> blocks, float* values);

}  // namespace lathe
