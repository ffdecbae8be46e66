// Reads GGUF files (see gguf.h).
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
/// length and offset against its size, that tensors follow each other in the order of the header,
/// each at the next multiple of general.alignment, and that nothing follows the last one. Errors
/// are Exit::checkpoint, and name the file and the key or tensor.
class GGUFFile {
 public:
  explicit GGUFFile(const fs::path& path);

  /// Returns the metadata as an object, in the order of the file. A float32 value is converted by
  /// decimal_value(): to 1e-5, not to 9.99999975e-6.
  const Json& metadata() const { return metadata_; }
  /// Returns the value of a metadata key, or null if there is no such key.
  const Json* find_value(const std::string& key) const;
  /// Returns the tensors in the order of the file. The dtype is the name of a GGUFType, and the
  /// last size of the shape is the length of a row. Their bytes are valid as long as this object.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// Returns the entry of that name, or null.
  const TensorEntry* find(const std::string& name) const;
  /// Releases the memory of an entry's bytes; they are read again when they are needed.
  void release(const TensorEntry& entry) const { file_.release(entry.bytes); }
  const fs::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  Json metadata_ = Json::object();
  std::unordered_map<std::string, size_t> keys_, names_;  // positions in metadata_ and tensors_
  std::vector<TensorEntry> tensors_;
};

/// Returns the shortest decimal text that reads back as exactly this float, such as "1e-05".
std::string decimal_text(float x);
/// Returns the double that decimal_text(x) reads back as. Returns x itself if it is not finite.
double decimal_value(float x);
/// Returns whether `path` is a regular file that begins like a GGUF file.
bool is_gguf(const fs::path& path);

}  // namespace lathe
