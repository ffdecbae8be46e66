// Implements `lathe plan CONFIG --card NAME ...`: forecasts the step of a config on a cluster of
// GPUs that this machine does not have, with the simulator (train/simulate/estimate.h).
#pragma once

#include "train/commands/commands.h"

namespace lathe {

/// Returns the flags of a plan for a cluster.
const Flags& cluster_flags();
/// Returns whether any flag of cluster_flags() is given.
bool asks_for_cluster(const Arguments& arguments);
/// Prints the plan for a cluster. Returns Exit::no_fit if no layout fits. Throws Exit::usage for
/// invalid flags, and for model kinds other than gpt and llama.
Exit plan_cluster(const Arguments& arguments, const LoadedConfig& loaded);

}  // namespace lathe
