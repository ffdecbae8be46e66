// Runs a sweep. Each point is trained by a separate process in a separate run folder. sweep.json
// describes the points and never changes. For example, the point lr=1e-3 has its progress in
// points/lr=1e-3.json, its run in points/lr=1e-3, and its output in points/lr=1e-3.log.
//
// A rung is a step at which successive halving compares runs. Before the process of a point starts,
// the progress file receives the rung to which the run will train. After the process has ended, the
// file receives the validation loss. Both writes are durable. If a sweep is killed at any moment,
// each point is either done or can resume from its checkpoints.
//
// Successive halving pauses a run at a rung (`train.pause_at`) without shortening its learning rate
// schedule. A run that was paused and promoted is bitwise equal to a run that never paused.
#pragma once

#include "core/error.h"
#include "core/io/file.h"
#include "train/commands/sweep_plan.h"

namespace lathe {

/// Starts a sweep in `folder`, or resumes it. At most `jobs` runs train at the same time, each with
/// `threads` threads; 0 means the number in the config. A resumed sweep keeps its number of
/// threads. When no point is left to train, writes a table, a report and the best point's config,
/// and returns Exit::done. Returns Exit::stopped if a stop is requested. Throws Exit::usage if the
/// folder holds another sweep, and Exit::busy if another process is running this sweep. If a run
/// fails, stops the other runs and throws an error with the exit code of the failed run. A run that
/// diverges or needs too much memory ends only its own point.
Exit run_sweep(SweepPlan plan, const fs::path& folder, size_t jobs, int threads);

}  // namespace lathe
