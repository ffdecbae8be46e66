// Reads and writes the safetensors format (Hugging Face, described in the safetensors repository's
// README). A file contains an 8-byte length, a JSON header, then the tensors' bytes without gaps.
// Names are written in sorted order, so that equal tensors give equal files.
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
  /// One of "F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U8",
  /// "BOOL".
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  ///< the elements: contiguous, row-major, little-endian; not
                                     ///< owned by the entry
  /// If set, this function provides the elements instead of `bytes`. It is called when the entry is
  /// written, and passes the bytes to `put` in parts.
  std::function<void(const std::function<void(std::span<const std::byte>)>& put)> stream{};
  std::string note{};  ///< the value that "__metadata__" holds for the tensor's name; empty: none

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

/// A mapped safetensors file. The constructor validates that the header is within the file, that
/// dtypes are known, that shapes match the numbers of bytes, that there are no gaps or overlaps,
/// and that nothing follows the last tensor. Errors have Exit::checkpoint. Their messages contain
/// the path of the file and, if the error is in a tensor's entry, the name of the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const fs::path& path);
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Returns the entry with that name; null if there is none.
  const TensorEntry* find(const std::string& name) const;
  /// Returns the entry with that name. If there is none, throws an error that contains the name.
  const TensorEntry& at(const std::string& name) const;
  /// Releases the memory of an entry's bytes. They are read from the file again when they are
  /// needed.
  void release(const TensorEntry& entry) const { file_.release(entry.bytes); }

 private:
  MappedFile file_;
  std::vector<TensorEntry> tensors_;  // sorted by name
  std::map<std::string, std::string> metadata_;
};

}  // namespace lathe
