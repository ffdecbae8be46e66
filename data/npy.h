// NumPy's .npy files (format description: numpy.lib.format): one array, memory-mapped for reading,
// streamed for writing. No LibTorch header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/io/checksum.h"
#include "core/io/file.h"

namespace lathe {

/// Types of an array's elements, little-endian. bf16 is none of NumPy's; safetensors have it.
enum class ArrayType { f16, f32, f64, bf16, i8, i16, i32, i64, u8, u16, u32, boolean };

/// "float32", "int64", "bool", ...
const char* array_type_name(ArrayType type);
/// The type of that name; Exit::data, beginning with `where`, for another.
ArrayType array_type(const std::string& name, const std::string& where);
/// Bytes of one element.
int64_t array_type_bytes(ArrayType type);

/// A mapped .npy file, versions 1 to 3, in C order. Checked whole: the header within bounds, and as
/// many bytes behind it as its shape needs. Exit::data with the file and one sentence.
class NpyFile {
 public:
  explicit NpyFile(const fs::path& path);
  ArrayType type() const { return type_; }
  /// {} for a single number.
  const std::vector<int64_t>& sizes() const { return sizes_; }
  /// The elements, which may lie at any address; not owned.
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Gives the memory behind `part` back until it is wanted again.
  void release(std::span<const std::byte> part) const { file_.release(part); }

 private:
  MappedFile file_;
  ArrayType type_ = ArrayType::f32;
  std::vector<int64_t> sizes_;
  std::span<const std::byte> bytes_;
};

/// Writes a .npy file (version 1, C order) from its elements in order. Errors are Exit::io.
class NpyWriter {
 public:
  /// Any type but bf16; the sizes are those of the finished array.
  NpyWriter(const fs::path& path, ArrayType type, const std::vector<int64_t>& sizes);
  /// Appends values in row-major order.
  void write(const void* data, size_t bytes);
  /// Syncs and closes the file, which must have all its elements, and returns its checksum.
  std::string finish();

 private:
  std::string name_;
  OutputFile file_;
  Checksum sum_;
  uint64_t left_;  // bytes that the sizes still ask for
};

}  // namespace lathe
