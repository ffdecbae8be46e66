// What is at a path that somebody named.
#pragma once

#include "core/io/file.h"

namespace lathe {

/// What a path on the command line is.
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
/// What is at a path, by its name and what is in it. A data folder has a manifest.json or token
/// shards.
PathKind kind_of(const fs::path& path);

/// A folder's path as typed, so that its last part is its name.
inline fs::path without_trailing_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}
/// Whether a folder is a checkpoint, whatever its name, or a run with a folder of them.
bool is_checkpoint(const fs::path& folder);
/// Whether a folder is of Hugging Face's form: it has a config.json, and is no checkpoint of ours.
bool is_hugging_face(const fs::path& folder);
/// Whether it is the folder of a run: one with a config and checkpoints, or a lock.
bool is_run(const fs::path& folder);

}  // namespace lathe
