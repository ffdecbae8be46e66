// Runs a sweep. The run of each point is a process and has its own folder. sweep.json describes the
// points and never changes. For the point lr=1e-3, points/lr=1e-3.json has its progress,
// points/lr=1e-3 is its run, and points/lr=1e-3.log has its output.
//
// points/lr=1e-3.json receives the point's next target before its process starts, and its loss
// after the process has ended, both durably. After a kill at any moment, a point is either done or
// resumes from its own checkpoints. Successive halving pauses runs (`train.pause_at`), so schedules
// are those of the complete run, and a promoted run has the bits of one that never paused.
#pragma once

#include "core/error.h"
#include "core/io/file.h"
#include "train/commands/sweep_plan.h"

namespace lathe {

/// Starts a sweep in `folder`, or resumes it, with `jobs` runs at a time of `threads` threads each
/// (0: as the config sets); a resumed sweep keeps its number of threads. When nothing is left to
/// do, writes a table, a report and the best point's config, and returns Exit::done. Returns
/// Exit::stopped if a stop is requested. Throws Exit::usage if the folder holds another sweep,
/// Exit::busy if another process runs it, and an error with the exit code of the first point that
/// failed.
Exit run_sweep(SweepPlan plan, const fs::path& folder, size_t jobs, int threads);

}  // namespace lathe
