// Benchmarks of training steps, of ops beside ATen's, of generation, of collectives, and of the
// matmul ceiling.
#pragma once

#include <cstdint>
#include <string>

#include "train/commands/commands.h"

namespace lathe {

struct OpSizes {
  int64_t batch = 4, context = 256, width = 768, vocab = 50304;  ///< heads are 64 wide
  std::string only;
};
/// Times each op, forward and backward, beside the same work in ATen. The two alternate, and the
/// median of each counts. Prints a line for each op and returns the results as JSON.
std::string time_ops(const OpSizes& sizes, int threads, const std::string& dtype);

/// Runs `lathe bench generate CONFIG|RUN`: times generation by the model of a run, or by that of a
/// config with its initial values; prints a line of JSON.
Exit bench_generate(const Arguments& arguments);

/// Runs `lathe bench collectives` on a rank of several processes: rank 0 prints the time of each
/// collective and the bytes that it sends, beside c10d's own, as a table and a line of JSON. Throws
/// Exit::usage in a process that was not started as a rank.
Exit bench_collectives(const Arguments& arguments);

/// Returns which kernels this machine runs, a line for each kind.
std::string kernels_text();

}  // namespace lathe
