// How a step is shared out among the processes of a run, and what they must have in common.
#pragma once

#include <string>

#include "train/config/run_config.h"

namespace lathe {

/// Throws Exit::usage unless dist.tensor divides `processes`, and the quotient divides
/// train.grad_accum: with the counts that do, and with other keys of the same global batch that it
/// divides.
void check_shares(const LoadedConfig& loaded, int64_t processes);

/// Returns how many of `processes` compute each layer together: dist.tensor, but for one process 1.
int tensor_ranks(const RunConfig& config, int64_t processes);

/// Returns a checksum of the code that runs, which distinguishes builds.
std::string library_checksum();

}  // namespace lathe
