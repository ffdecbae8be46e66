// The safetensors format (Hugging Face, format description in the safetensors repository's README):
// an 8-byte length, a JSON header, then the tensors' bytes without gaps. Written with sorted names,
// so that equal tensors give equal files.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

struct TensorEntry {
  std::string name;
  std::string dtype;  ///< "F64" "F32" "F16" "BF16" "I64" "I32" "I16" "I8" "U8" "BOOL"
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  ///< contiguous, row-major, little-endian; not owned

  /// The product of the sizes.
  int64_t numel() const;
};

/// Bytes of one element of a safetensors dtype; 0 for an unknown one.
int64_t safetensors_dtype_size(const std::string& dtype);

/// Writes and syncs the file; returns its checksum. `metadata` becomes "__metadata__".
std::string write_safetensors(const fs::path& path, std::vector<TensorEntry> tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// A mapped safetensors file, validated whole: header within the file, known dtypes, shapes that
/// fit their bytes, no gap, no overlap, nothing behind the last tensor. Errors are Exit::checkpoint
/// and name the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const fs::path& path);
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The entry of that name, or null.
  const TensorEntry* find(const std::string& name) const;
  /// The entry of that name, or an error that names it.
  const TensorEntry& at(const std::string& name) const;
  /// Says that an entry's bytes have been used: their memory is given back until they are wanted
  /// again.
  void release(const TensorEntry& entry) const { file_.release(entry.bytes); }

 private:
  MappedFile file_;
  std::vector<TensorEntry> tensors_;  // sorted by name
  std::map<std::string, std::string> metadata_;
};

}  // namespace lathe
