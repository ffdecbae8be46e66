// Writes the results of a finished sweep: the tables, the report and the best config.
#pragma once

#include "core/io/file.h"
#include "train/commands/sweep_plan.h"

namespace lathe {

/// Formats keys and values as on a command line, without dashes: "optim.lr=1e-3 train.seed=1".
std::string overrides_text(const Overrides& overrides);
/// Writes table.txt, report.html and best.toml into the sweep's folder, and prints the table and
/// the best point. `names` are the names of the points; the run of each point is in points/NAME.
/// Without successive halving, averages the results over seeds and folds, and the best point is the
/// one with the lowest mean loss.
void write_sweep_results(const SweepPlan& plan, const std::vector<std::string>& names,
                         const std::vector<PointState>& states, const fs::path& folder);

}  // namespace lathe
