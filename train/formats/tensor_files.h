// The weights of a Hugging Face folder: model.safetensors, or the files that
// model.safetensors.index.json lists. No LibTorch header.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/io/safetensors.h"

namespace lathe {

/// The mapped files, each validated whole and against the index, where there is one.
class TensorFiles {
 public:
  /// Exit::checkpoint with what is missing, or what the index and the files say differently.
  explicit TensorFiles(const fs::path& folder);
  /// The entry of that name, or null. It lives as long as this object.
  const TensorEntry* find(const std::string& name) const;
  /// Names of all, sorted.
  std::vector<std::string> names() const;
  /// Says that an entry's bytes have been used: their memory is given back until they are wanted
  /// again.
  void release(const TensorEntry& entry) const;
  /// The file that holds a tensor, for messages.
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

/// model.safetensors.index.json: the file of each tensor. Exit::checkpoint, beginning with `where`.
std::map<std::string, std::string> parse_index(std::string_view text, const std::string& where);

}  // namespace lathe
