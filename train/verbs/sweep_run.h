// The runs of a sweep, each a process and a folder of its own. sweep.json says what is tried and
// never changes; points/0001.json how far a point is, points/0001 is its run, points/0001.log what
// it said.
//
// points/0001.json receives the next target before its process starts and the loss after it
// ended, each durably. After a kill at any moment a point is either done or resumes from its
// own checkpoints. Successive halving pauses runs (`train.pause_at`), so schedules are those of
// the complete run, and a promoted run has the bits of one that never paused.
#pragma once

#include "core/error.h"
#include "core/io/file.h"
#include "train/verbs/sweep_plan.h"

namespace lathe {

/// Starts a sweep in `folder`, or resumes it: `jobs` runs at a time, of `threads` threads each
/// (0: as the config sets), until nothing is left to do (Exit::done) or a stop is requested
/// (Exit::stopped). Ends with a table, a report and the best point's config. Exit::usage where the
/// folder holds another sweep, Exit::busy where another process runs it, else the exit code of the
/// first point that failed.
Exit run_sweep(SweepPlan plan, const fs::path& folder, size_t jobs, int threads);

}  // namespace lathe
