// Declares TensorFiles, which reads the weights of a Hugging Face folder: model.safetensors, or the
// files that model.safetensors.index.json lists. Includes no LibTorch header.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/io/safetensors.h"

namespace lathe {

/// Memory-maps and completely validates the files of a folder. If there is no model.safetensors,
/// also validates the files against the index. If there is a model.safetensors, ignores an index.
class TensorFiles {
 public:
  /// Maps the files. Throws Exit::checkpoint if a file is missing or damaged, or if the index and
  /// the files differ.
  explicit TensorFiles(const fs::path& folder);
  /// Returns the tensor with this name, or null if there is none. The pointer is valid as long as
  /// this object exists.
  const TensorEntry* find(const std::string& name) const;
  /// Returns the names of all tensors, sorted.
  std::vector<std::string> names() const;
  /// Releases the memory of an entry that is no longer needed; the next access reads the file
  /// again.
  void release(const TensorEntry& entry) const;
  /// Returns a checksum of the names, dtypes, shapes and bytes of all tensors. Reads all files.
  std::string content_id() const;
  /// Returns the path of the file that has the tensor `name`, for messages. `name` must be one of
  /// names().
  const fs::path& file_of(const std::string& name) const;

 private:
  struct Place {
    const SafetensorsFile* file;
    const fs::path* path;
    const TensorEntry* entry;
  };
  void add(const fs::path& path);

  std::vector<std::pair<std::unique_ptr<fs::path>, std::unique_ptr<SafetensorsFile>>> files_;
  std::map<std::string, Place> places_;
};

/// Parses the text of a model.safetensors.index.json, and returns the file name of each tensor. If
/// the text is not valid, throws Exit::checkpoint with a message that begins with `where`.
std::map<std::string, std::string> parse_index(std::string_view text, const std::string& where);

}  // namespace lathe
