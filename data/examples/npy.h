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

/// Element types of an array, little-endian. NumPy has no bf16; safetensors does.
enum class ArrayType { f16, f32, f64, bf16, i8, i16, i32, i64, u8, u16, u32, boolean };

/// Returns the name of a type: "float32", "int64", "bool", ...
const char* array_type_name(ArrayType type);
/// Returns the type of that name. Throws Exit::data, beginning with `where`, for any other name.
ArrayType array_type(const std::string& name, const std::string& where);
/// Returns the number of bytes of one element.
int64_t array_type_bytes(ArrayType type);

/// A memory-mapped .npy file, version 1 to 3, in C order. The constructor checks that the header is
/// complete and that exactly as many bytes follow as its shape and type need. Otherwise it throws
/// Exit::data with the file's name.
class NpyFile {
 public:
  explicit NpyFile(const fs::path& path);
  ArrayType type() const { return type_; }
  /// Returns the dimensions; {} for a single number.
  const std::vector<int64_t>& sizes() const { return sizes_; }
  /// Returns the elements, which may be unaligned. They belong to this object.
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Releases the memory of `part`; the next access reads the file again.
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
  /// Creates the file. `type` may be any but bf16, and `sizes` are those of the finished array.
  NpyWriter(const fs::path& path, ArrayType type, const std::vector<int64_t>& sizes);
  /// Appends values in row-major order.
  void write(const void* data, size_t bytes);
  /// Syncs and closes the file and returns its checksum. All elements must have been written.
  std::string finish();

 private:
  std::string name_;
  OutputFile file_;
  Checksum sum_;
  uint64_t left_;  // bytes of elements that are still to be written
};

}  // namespace lathe
