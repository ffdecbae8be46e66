#include "train/formats/tensor_files.h"

#include <set>

#include "core/io/checksum.h"
#include "core/io/json.h"

namespace lathe {

std::map<std::string, std::string> parse_index(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where, Exit::checkpoint);
  const auto map = json_get<Json>(json, "weight_map", where, Exit::checkpoint);
  if (!map.is_object() || map.empty())
    fail(Exit::checkpoint, where, ": \"weight_map\" must name the file of each tensor");

  // Refuse names with a path separator, which could lead out of the folder.
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map.items()) {
    const bool plain = file.is_string() && file.get_ref<const std::string&>().find_first_of(
                                               std::string("/\\\0", 3)) == std::string::npos;
    if (!plain || !file.get_ref<const std::string&>().ends_with(".safetensors"))
      fail(Exit::checkpoint, where, ": the file of \"", tensor,
           "\" must be a .safetensors file in the folder of the index");
    files[tensor] = file.get<std::string>();
  }
  return files;
}

TensorFiles::TensorFiles(const fs::path& folder) {
  const fs::path whole = folder / "model.safetensors",
                 index = folder / "model.safetensors.index.json";

  // A single file needs no index, so ignore an index beside it.
  if (fs::exists(whole)) {
    add(whole);
    return;
  }

  if (!fs::exists(index)) {
    const bool pickled = fs::exists(folder / "pytorch_model.bin") ||
                         fs::exists(folder / "pytorch_model.bin.index.json");
    fail(Exit::checkpoint, folder.string(),
         " has neither model.safetensors nor model.safetensors.index.json",
         pickled ? "; save its weights (pytorch_model*.bin) as safetensors first" : "");
  }

  const std::string where = index.string();
  const auto wanted = parse_index(read_file(index, Exit::checkpoint, uint64_t{64} << 20), where);
  std::set<std::string> files;
  for (const auto& [tensor, file] : wanted) files.insert(file);

  for (const std::string& file : files) {
    if (!fs::exists(folder / file))
      fail(Exit::checkpoint, where, " names ", file, ", but there is no such file");
    add(folder / file);
  }

  // The index and the files must agree in both directions, or they belong to different models.
  for (const auto& [tensor, file] : wanted) {
    const auto found = places_.find(tensor);
    if (found == places_.end() || found->second.path->filename() != file)
      fail(Exit::checkpoint, where, ": \"", tensor, "\" should be in ", file, ", but is not");
  }
  for (const auto& [tensor, place] : places_) {
    if (!wanted.contains(tensor))
      fail(Exit::checkpoint, where, " does not name \"", tensor, "\", which is in ",
           place.path->string());
  }
}

void TensorFiles::add(const fs::path& path) {
  auto& [kept, file] = files_.emplace_back(std::make_unique<fs::path>(path),
                                           std::make_unique<SafetensorsFile>(path));
  for (const TensorEntry& entry : file->tensors()) {
    const auto [there, is_new] =
        places_.emplace(entry.name, Place{.file = file.get(), .path = kept.get(), .entry = &entry});
    if (!is_new)
      fail(Exit::checkpoint, path.string(), ": tensor \"", entry.name, "\" is in ",
           there->second.path->string(), " too");
  }
}

const TensorEntry* TensorFiles::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.entry;
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> all;
  for (const auto& [name, place] : places_) all.push_back(name);
  return all;
}

void TensorFiles::release(const TensorEntry& entry) const {
  places_.at(entry.name).file->release(entry);
}

std::string TensorFiles::content_id() const {
  Checksum sum;
  for (const auto& [name, place] : places_) {
    const TensorEntry& entry = *place.entry;
    std::string text = str(name, " ", entry.dtype);
    for (const int64_t size : entry.shape) text += str(" ", size);
    sum.update(text.data(), text.size());
    sum.update(entry.bytes.data(), entry.bytes.size());
    release(entry);
  }
  return sum.hex();
}

const fs::path& TensorFiles::file_of(const std::string& name) const {
  return *places_.at(name).path;
}

}  // namespace lathe
