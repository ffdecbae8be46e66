// Benchmarks of training steps, of ops compared with ATen's, of generation, of collectives, and of
// the peak matmul rate.
#pragma once

#include <cstdint>
#include <string>

#include "train/commands/commands.h"

namespace lathe {

struct OpSizes {
  int64_t batch = 4, context = 256, width = 768, vocab = 50304;  ///< heads are 64 wide
  /// Times only ops whose name contains this; empty: all.
  std::string only;
};
/// Times forward and backward of each op and the same work in ATen, in alternating rounds. Prints a
/// line with the median times of each op, and returns the results as JSON.
std::string time_ops(const OpSizes& sizes, int threads, const std::string& dtype);

/// Runs `lathe bench generate CONFIG|RUN`: times generation with the model of a run, or with a
/// model of a config at its initial values. Prints a line of JSON.
Exit bench_generate(const Arguments& arguments);

/// Runs `lathe bench collectives` on one rank of several processes. Rank 0 prints the time of each
/// collective and the bytes that it sends, compared with c10d's own collective, as a table and a
/// line of JSON. Throws Exit::usage in a process that was not started as a rank.
Exit bench_collectives(const Arguments& arguments);

/// Returns a text for the user: the CPU, its instruction sets, and the kernels that are used for
/// each dtype.
std::string kernels_text();

}  // namespace lathe
