// Declares the reader of GGUF files (see gguf.h).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/io/gguf_types.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"

namespace lathe {

/// A mapped GGUF file of version 2 or 3 in little-endian order. Opening the file checks every
/// length and offset against the size of the file. It also checks that tensors follow each other in
/// the order of the header, each at the next multiple of general.alignment, and that nothing
/// follows the last tensor. Errors have Exit::checkpoint, and name the file and the key or tensor.
class GGUFFile {
 public:
  explicit GGUFFile(const fs::path& path);

  /// Returns the metadata as an object, in the order of the file. decimal_value() converts float32
  /// values, so that 1e-5 is not returned as 9.99999975e-6.
  const Json& metadata() const { return metadata_; }
  /// Returns the value of a metadata key; null if there is no such key.
  const Json* find_value(const std::string& key) const;
  /// Returns the tensors in the order of the file. The dtype of an entry is the name of a GGUFType,
  /// and the last size of its shape is the length of a row. The entries' bytes are valid as long as
  /// this object exists.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Returns the entry with that name; null if there is none.
  const TensorEntry* find(const std::string& name) const;
  /// Releases the memory of an entry's bytes. They are read from the file again when they are
  /// needed.
  void release(const TensorEntry& entry) const { file_.release(entry.bytes); }
  const fs::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  Json metadata_ = Json::object();
  std::unordered_map<std::string, size_t> keys_, names_;  // map keys to positions in metadata_, and
                                                          // names to positions in tensors_
  std::vector<TensorEntry> tensors_;
};

/// Returns the shortest decimal text that reads back as exactly this float, such as "1e-05".
std::string decimal_text(float x);
/// Returns the double that decimal_text(x) denotes. Returns x itself if x is not finite.
double decimal_value(float x);
/// Returns whether `path` is a regular file that begins with the magic number of GGUF.
bool is_gguf(const fs::path& path);

}  // namespace lathe
