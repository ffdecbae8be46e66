// Runs a sweep. The run of each point is a process and has its own folder. sweep.json describes the
// points and never changes. For the point lr=1e-3, points/lr=1e-3.json has its progress,
// points/lr=1e-3 is its run, and points/lr=1e-3.log has its output.
//
// Before a point's process starts, the progress file receives the rung (the step at which halving
// compares runs) to which the run will train. After the process has ended, the file receives the
// validation loss. Both are written durably. If a sweep is killed at any moment, each point is
// either done or can resume from its own checkpoints.
//
// Successive halving pauses a run at a rung (`train.pause_at`) without shortening its learning rate
// schedule. A run that is paused and promoted has the same bits as one that never paused.
#pragma once

#include "core/error.h"
#include "core/io/file.h"
#include "train/commands/sweep_plan.h"

namespace lathe {

/// Starts a sweep in `folder`, or resumes it. At most `jobs` runs train at the same time, each with
/// `threads` threads (0: the number in the config); a resumed sweep keeps its number of threads.
/// When nothing is left to do, writes a table, a report and the best point's config, and returns
/// Exit::done. Returns Exit::stopped if a stop is requested. Throws Exit::usage if the folder holds
/// another sweep, and Exit::busy if another process runs this one. If a run fails, stops the other
/// runs and throws an error with its exit code. A run that diverges or needs too much memory ends
/// only its own point.
Exit run_sweep(SweepPlan plan, const fs::path& folder, size_t jobs, int threads);

}  // namespace lathe
