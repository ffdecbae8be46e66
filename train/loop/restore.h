// Declares the function that restores a run from a checkpoint.
#pragma once

#include <vector>

#include "train/loop/resume.h"
#include "train/session/session.h"

namespace lathe {

/// The checkpoint that a run was restored from.
struct RestoredRun {
  fs::path checkpoint;                ///< the checkpoint's folder; empty for a new run
  bool same_run = true;               ///< false: the run begins as a branch of another run
  int64_t saved_step = -1;            ///< step of the run's newest checkpoint; -1 if there is none
  std::vector<ConfigChange> changes;  ///< keys of the config that changed since the checkpoint
};

/// Loads the tensors of the checkpoint into the session, and the checkpoint's state into `state`.
/// state.data_hash must be the hash of `data`. If both runs have a single process, also restores
/// the number of threads, unless the command line sets train.threads. Logs a warning if the machine
/// differs, or if train.threads on the command line differs from the saved number. Throws
/// Exit::usage if the data is not the run's data or if a fixed key differs.
RestoredRun restore(const ResumePoint& from, const LoadedConfig& loaded, const Data& data,
                    Session& session, RunState& state);

}  // namespace lathe
