// Declares functions that divide a step among the processes of a run, and identify the code that
// the processes run.
#pragma once

#include <string>

#include "dist/placement.h"
#include "train/config/run_config.h"

namespace lathe {

/// Throws Exit::usage unless the size of a replica (replica_of()) divides `processes`, and the
/// quotient, the number of batch groups (dist/world.h), divides train.grad_accum. The error names
/// numbers of processes that work and, if there are any, values of keys that keep the global batch.
/// Also throws for train.sum_order = "sequence" with several batch groups or with dist.context
/// above 1, for memory.update_in_backward unless each batch group has one micro-batch, and for
/// settings that dist.pipeline or dist.virtual_stages excludes.
void check_process_count(const LoadedConfig& loaded, int64_t processes);

/// Throws Exit::usage if the processes can't divide the layers of this model (dist.tensor). The
/// reason may be that the model kind has no rules for cutting layers, that dist.tensor does not
/// divide the units that the rules cut, such as heads, or that other keys exclude dist.tensor. Also
/// throws for dist.sequence_parallel with dist.tensor = 1. Does nothing in a single process, which
/// ignores dist.tensor and dist.sequence_parallel. Call it after resolve_init_from() and
/// resolve_adapter_base(), which set the keys of [model].
void check_tensor_ranks(const LoadedConfig& loaded, int64_t processes);

/// Returns the sizes of the grid of processes that compute a micro-batch together: dist.pipeline,
/// dist.context and dist.tensor. In a single process, each size is 1.
GridSizes replica_of(const RunConfig& config, int64_t processes);
/// Returns whether `processes` processes can divide the micro-batches of a step equally, and as
/// memory.update_in_backward and dist.virtual_stages require.
bool can_divide_micro_batches(const RunConfig& config, int64_t processes);

/// Returns the checksum of Lathe's library file. Processes compare the checksum to detect that they
/// run different builds. Returns "unknown" if the system does not name the file. Throws Exit::io if
/// the file can't be read.
std::string library_checksum();

}  // namespace lathe
