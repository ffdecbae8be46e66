// Where a run resumes from, and what may have changed since.
#pragma once

#include <optional>
#include <vector>

#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

struct ResumePoint {
  fs::path checkpoint;
  RunState state;
  bool same_run =
      true;  ///< false: the checkpoint is another run's, and this run begins as a branch of it
};

/// The checkpoint that a run resumes from, by checkpoint.resume, or nullopt for a new run. A
/// branch's own checkpoints come before what it branched from, which need not be there any more.
/// Nothing is created or changed. Exit::usage where the run folder is another run's,
/// Exit::checkpoint where no checkpoint can be used.
std::optional<ResumePoint> find_resume_point(const LoadedConfig& loaded);

/// The keys that differ between the config of a checkpoint of `step` and the one now; those that
/// only steer a process (checkpoint.resume, train.threads, train.pause_at) are left out.
/// Exit::usage where a fixed one differs.
std::vector<ConfigChange> config_changes(const RunConfig& saved, const LoadedConfig& now,
                                         int64_t step);

}  // namespace lathe
