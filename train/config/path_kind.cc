#include "train/config/path_kind.h"

#include <fstream>

#include "core/io/file.h"
#include "data/tokens/tokens.h"

namespace lathe {

namespace {

bool has_checkpoint_name(const fs::path& folder) {
  return folder.filename().string().starts_with("step-");
}

/// Returns whether the manifest.json of a folder begins like the manifest.json of a checkpoint.
bool has_checkpoint_manifest(const fs::path& folder) {
  std::error_code none;
  const fs::path path = folder / "manifest.json";
  if (!fs::is_regular_file(path, none)) return false;
  std::string begin(64, '\0');
  std::ifstream(path, std::ios::binary).read(begin.data(), std::ssize(begin));
  return begin.find("\"lathe-checkpoint-") != std::string::npos;
}

}  // namespace

bool is_checkpoint(const fs::path& folder) {
  // A damaged checkpoint is recognized by its manifest or by its parent folder's name. A folder of
  // runs may also be named "checkpoints", so exclude runs.
  return fs::exists(folder / "state.json") || fs::exists(folder / "model.safetensors") ||
         has_checkpoint_manifest(folder) ||
         (folder.parent_path().filename() == "checkpoints" && has_checkpoint_name(folder) &&
          !is_run(folder));
}
bool is_hugging_face(const fs::path& folder) {
  return fs::exists(folder / "config.json") && !fs::exists(folder / "state.json");
}
bool is_run(const fs::path& folder) {
  const bool has_begun = fs::exists(folder / "config.toml") && fs::exists(folder / "lock");
  if (has_begun) return true;
  std::error_code error;
  fs::directory_iterator inside(folder / "checkpoints", error);
  for (; !error && inside != fs::directory_iterator(); inside.increment(error)) {
    if (has_checkpoint_name(inside->path())) return true;
  }
  return false;
}

PathKind kind_of(const fs::path& path_) {
  const fs::path path = without_trailing_slash(path_);
  if (!fs::exists(path)) return PathKind::missing;
  if (!fs::is_directory(path))
    return lower_extension(path) == ".safetensors" ? PathKind::safetensors
           : lower_extension(path) == ".gguf"      ? PathKind::gguf
                                                   : PathKind::file;
  if (is_hugging_face(path)) return PathKind::hugging_face;
  if (is_checkpoint(path)) return PathKind::checkpoint;
  if (is_run(path)) return PathKind::run;
  const bool data = fs::exists(path / "manifest.json") || has_split(path, "train", std::nullopt) ||
                    has_split(path, "val", std::nullopt);
  return data ? PathKind::data : PathKind::folder;
}

void check_output_folder(const std::string& name, const fs::path& path, PathKind own) {
  const PathKind kind = kind_of(path);
  if (kind == PathKind::missing || kind == PathKind::folder || kind == own) return;
  const char* what = kind == PathKind::run          ? "a run"
                     : kind == PathKind::data       ? "prepared data"
                     : kind == PathKind::checkpoint ? "a checkpoint"
                     : fs::is_directory(path)       ? "a model"
                                                    : "a file";
  fail(Exit::usage, name, ": ", path.string(), " is taken by ", what, "; name another folder");
}

}  // namespace lathe
