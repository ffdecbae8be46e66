// Classifies the paths that a user names.
#pragma once

#include "core/io/file.h"

namespace lathe {

/// The kinds of paths that a user can give on the command line.
enum class PathKind {
  missing,
  file,
  safetensors,
  gguf,
  folder,
  data,
  run,
  checkpoint,
  hugging_face
};
/// Returns the kind of a path, judged by its name and contents. A data folder is recognized by a
/// manifest.json or token shards.
PathKind kind_of(const fs::path& path);

/// Throws Exit::usage unless `path` can become a folder of the kind `own`: it must be missing, a
/// plain folder, or already a folder of that kind. `name` is the key or option that gives the path.
void check_output_folder(const std::string& name, const fs::path& path, PathKind own);

/// Returns the path of a folder without a slash at its end, so that filename() is the name of the
/// folder.
inline fs::path without_trailing_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}
/// Returns whether a folder is a checkpoint: it holds state.json, model.safetensors or the
/// manifest.json of a checkpoint, or it is named step-... in a folder named "checkpoints" and is
/// not a run. Also returns true for a folder in Hugging Face's layout that holds model.safetensors,
/// so call is_hugging_face() first.
bool is_checkpoint(const fs::path& folder);
/// Returns whether a folder has Hugging Face's layout: it holds config.json, but not state.json,
/// which every checkpoint of Lathe has.
bool is_hugging_face(const fs::path& folder);
/// Returns whether a folder is a run: it has checkpoints, or the config and the lock that training
/// creates before its first save.
bool is_run(const fs::path& folder);

}  // namespace lathe
