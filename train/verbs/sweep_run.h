// The runs of a sweep, each a process and a folder of its own. sweep.json says what is tried and
// never changes; points/0001.json how far a point is, points/0001 is its run, points/0001.log what
// it said.
#pragma once

#include "core/error.h"
#include "core/io/file.h"
#include "train/verbs/sweep_plan.h"

namespace lathe {

/// Begins a sweep in `folder`, or goes on with it: `jobs` runs at once, of `threads` threads each
/// (0: as the config says), until nothing is left to do (Exit::done) or a stop is asked for
/// (Exit::stopped). Ends with a table, a report and the best point's config. Exit::usage where the
/// folder holds another sweep, Exit::busy where another process runs it, else the exit code of the
/// first point that failed.
Exit run_sweep(SweepPlan plan, const fs::path& folder, size_t jobs, int threads);

}  // namespace lathe
