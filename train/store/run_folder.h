// What a run folder holds beside checkpoints and metrics, and the rule for all of it: nothing that
// Lathe did not write is replaced, and what stands in the way is set aside under a name of its own.
//
// config.toml is written when training continues, never by a run that has nothing left to do.
// Changed keys are listed at its end and in metrics.jsonl. Lost lines of metrics.jsonl are a
// warning. A run folder that is removed or replaced during a run is an error at the next save.
#pragma once

#include <string>

#include "core/io/file.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Renames a file or folder to the first unused of the names `to`, `to`.2, `to`.3, ..., and logs
/// that. Throws Exit::io where it can't.
fs::path move_to_backup(const fs::path& path, const fs::path& to);

/// Exit::usage where config.toml of a folder without checkpoints is a person's own.
void check_config_record(const fs::path& run);
/// Writes the run folder's config.toml: what the run is trained with from now on, and what was
/// changed on the way. One that Lathe did not write is set aside.
void write_config_record(const fs::path& run, const RunConfig& config,
                         const std::vector<ConfigChange>& changes);

/// Returns a path that identifies a config file and stays the same when the project moves: relative
/// to the working folder if the file is inside it, else absolute.
std::string project_path(const fs::path& path);

}  // namespace lathe
