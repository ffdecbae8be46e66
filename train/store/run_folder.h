// Declares functions for the files of a run folder other than checkpoints and metrics. Lathe never
// replaces a file that it did not write: it renames the file, or refuses to start the run.
//
// config.toml is written when training starts or resumes, but not by a run that has nothing left to
// do. Changed keys are listed at the end of config.toml and in metrics.jsonl. Lost lines of
// metrics.jsonl cause a warning. If the run folder is removed or replaced during a run, the next
// save throws an error.
#pragma once

#include <string>

#include "core/io/file.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Renames a file or folder to the first unused of the names `to`, `to`.2, `to`.3, ..., and logs
/// the new name. Throws Exit::io if it can't be renamed. Returns the new name.
fs::path move_to_backup(const fs::path& path, const fs::path& to);

/// Throws Exit::usage if the folder has a config.toml that Lathe did not write. Call it for a
/// folder without checkpoints, where a new run would write config.toml.
void check_config_record(const fs::path& run);
/// Writes the run folder's config.toml: the config with which the run continues, and the keys that
/// changed on resumes. An existing file that Lathe did not write is renamed to config.toml.old.
void write_config_record(const fs::path& run, const RunConfig& config,
                         const std::vector<ConfigChange>& changes);

/// Returns a path that identifies a config file and stays the same when the project moves. The path
/// is relative to the working folder if the file is inside this folder, otherwise absolute.
std::string project_path(const fs::path& path);

}  // namespace lathe
