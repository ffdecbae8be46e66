// Reads and writes NumPy's .npy files, each of which holds one array (numpy.lib.format describes
// the format). Files are memory-mapped for reading and streamed for writing. Includes no LibTorch
// header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/io/checksum.h"
#include "core/io/file.h"

namespace lathe {

/// The element types of arrays. Elements are little-endian. The type bf16 occurs only in
/// safetensors files, since NumPy does not have it.
enum class ArrayType { f16, f32, f64, bf16, i8, i16, i32, i64, u8, u16, u32, boolean };

/// Returns the name of a type: "float32", "int64", "bool", ...
const char* array_type_name(ArrayType type);
/// Returns the type with this name. For an unknown name, throws Exit::data with a message that
/// begins with `where`.
ArrayType array_type(const std::string& name, const std::string& where);
/// Returns the number of bytes of one element.
int64_t array_type_bytes(ArrayType type);

/// A memory-mapped .npy file, version 1 to 3, in C order. The constructor throws Exit::data with
/// the file's name if the header is incomplete, or if the number of bytes after the header does not
/// match the shape and the type in the header.
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

/// Writes a .npy file (version 1, C order), whose elements are given in order. Throws Exit::io if
/// the file can't be written.
class NpyWriter {
 public:
  /// Creates the file. `type` may be any type except bf16. `sizes` are the dimensions of the
  /// finished array.
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
