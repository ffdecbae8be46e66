// Implements benchmarks: training steps, ops compared with ATen's, generation, collectives, and the
// peak matmul rate.
#pragma once

#include <cstdint>
#include <string>

#include "train/commands/commands.h"

namespace lathe {

struct OpSizes {
  int64_t batch = 4, context = 256, width = 768, vocab = 50304;  ///< heads are 64 wide
  /// Only ops whose name contains this text are timed; if it is empty, all ops are.
  std::string only;
};
/// Measures the time of each op, forward and backward, and of the same work in ATen, in alternating
/// rounds. Prints a line with the median times of each op, and returns the results as JSON.
std::string time_ops(const OpSizes& sizes, int threads, const std::string& dtype);

/// Runs `lathe bench generate CONFIG|RUN`: measures the speed of generation with the model of a
/// run, or with the model of a config at its initial values. Prints a line of JSON.
Exit bench_generate(const Arguments& arguments);

/// Runs `lathe bench collectives` on one rank of several processes. For each collective, rank 0
/// prints its time, the time of c10d's collective and the bytes that the collective sends, as a
/// table and a line of JSON. Throws Exit::usage in a process that was not started as a rank.
Exit bench_collectives(const Arguments& arguments);

/// Returns a text that names the CPU, its instruction sets, and the kernels that each dtype uses.
std::string kernels_text();

}  // namespace lathe
