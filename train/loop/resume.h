// Declares functions that find the checkpoint that a run resumes from, and the config keys that
// have changed since that checkpoint.
#pragma once

#include <optional>
#include <vector>

#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// The checkpoint that a run resumes from, and its state.
struct ResumePoint {
  fs::path checkpoint;
  RunState state;
  bool same_run = true;  ///< false: the checkpoint is from another run, and this run begins as a
                         ///< branch of that run
};

/// Returns the checkpoint that a run resumes from, as checkpoint.resume selects it, or nullopt for
/// a new run. A branch that has checkpoints resumes from the newest of them, so the checkpoint that
/// the branch began from may have been deleted. Creates and changes no files. Throws Exit::usage if
/// the run folder belongs to another run, or if checkpoint.resume is "never" and the run folder has
/// checkpoints. Throws Exit::checkpoint if no checkpoint can be used.
std::optional<ResumePoint> find_resume_point(const LoadedConfig& loaded);

/// Returns the keys that differ between `saved`, the config of a checkpoint of step `step`, and
/// `now`. Omits keys that concern only the process: checkpoint.resume, train.threads and
/// train.pause_at. Throws Exit::usage if a key differs that must not change.
std::vector<ConfigChange> config_changes(const RunConfig& saved, const LoadedConfig& now,
                                         int64_t step);

}  // namespace lathe
