// Declares the element types of GGUF files: floats, and ggml's blocks of quantized numbers. The
// layouts of the blocks are in ggml-quants.c of ggml (https://github.com/ggml-org/ggml).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lathe {

/// An element type. A row of a tensor is a sequence of blocks, so the length of a row is a multiple
/// of `elements`.
struct GGUFType {
  const char* name;  ///< ggml's name of the type, such as "F32" or "Q4_K"; TensorEntry::dtype holds
                     ///< the same name
  uint32_t number;   ///< the number that denotes the type in files
  uint32_t of_file;  ///< the value of the metadata key general.file_type in files whose matrices
                     ///< have this type
  int64_t elements;  ///< number of elements in a block
  size_t bytes;      ///< size of a block
  /// Converts a block to `elements` float32 numbers. The arithmetic is in float32, so for types
  /// whose blocks have an offset, such as Q4_1, the numbers may be rounded.
  void (*read)(const std::byte* block, float* values);
  /// Converts `elements` finite numbers to a block, with the rounding of ggml's reference
  /// implementation. Returns false if the block's scale is beyond float16's range. The pointer is
  /// null for types to which this build does not quantize.
  bool (*write)(const float* values, std::byte* block);

  /// Returns whether the elements of a block are integers that share a scale. Otherwise, elements
  /// are floats.
  bool is_quantized() const { return elements > 1; }
};

/// Returns all types that this build reads.
std::span<const GGUFType> gguf_types();
/// Returns the type with that name; null if there is none.
const GGUFType* find_gguf_type(std::string_view name);
/// Returns the type that has that number in files; null if there is none.
const GGUFType* find_gguf_type(uint32_t number);

/// Converts complete blocks to float32; `values` must have space for all elements.
void read_blocks(const GGUFType& type, std::span<const std::byte> blocks, float* values);

}  // namespace lathe
