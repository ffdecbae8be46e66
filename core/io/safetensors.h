// The safetensors format (Hugging Face, described in the safetensors repository's README): an
// 8-byte length, a JSON header, then the tensors' bytes without gaps. Names are written in sorted
// order, so that equal tensors give equal files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// A tensor that is read from a file or written to one. In GGUF files, `dtype` is the name of a
/// GGUFType.
struct TensorEntry {
  std::string name;
  /// "F64" "F32" "F16" "BF16" "F8_E4M3" "F8_E5M2" "I64" "I32" "I16" "I8" "U8" "BOOL"
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  ///< contiguous, row-major, little-endian; not owned
  /// If set, replaces `bytes`: it is called when the entry is written, and passes the bytes to
  /// `put` in parts.
  std::function<void(const std::function<void(std::span<const std::byte>)>& put)> stream{};
  std::string note{};  ///< value of "__metadata__" under the tensor's name; empty: none

  /// Returns the product of the sizes.
  int64_t numel() const;
  /// Returns the number of bytes of all elements; 0 for a dtype that safetensors does not have.
  uint64_t size() const;
  /// Passes the bytes to `put`, in parts if `stream` is set.
  void write(const std::function<void(std::span<const std::byte>)>& put) const;
};

/// Returns the size in bytes of one element of a safetensors dtype; 0 for an unknown dtype.
int64_t safetensors_dtype_size(const std::string& dtype);

/// Writes a safetensors file, syncs it, and returns its checksum (core/io/checksum.h). `metadata`
/// and the tensors' notes become "__metadata__".
std::string write_safetensors(const fs::path& path, std::vector<TensorEntry> tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// A mapped safetensors file, fully validated: header within the file, known dtypes, shapes that
/// fit their bytes, no gap, no overlap, nothing after the last tensor. Errors are Exit::checkpoint
/// and name the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const fs::path& path);
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Returns the entry of that name, or null.
  const TensorEntry* find(const std::string& name) const;
  /// Returns the entry of that name. Throws an error with the name if there is none.
  const TensorEntry& at(const std::string& name) const;
  /// Releases the memory of an entry's bytes; they are read again when they are needed.
  void release(const TensorEntry& entry) const { file_.release(entry.bytes); }

 private:
  MappedFile file_;
  std::vector<TensorEntry> tensors_;  // sorted by name
  std::map<std::string, std::string> metadata_;
};

}  // namespace lathe
