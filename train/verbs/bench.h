// Measuring: whole training steps, ops beside ATen's, writing text, the matmul ceiling.
#pragma once

#include <cstdint>
#include <string>

#include "train/verbs/verbs.h"

namespace lathe {

struct OpSizes {
  int64_t batch = 4, context = 256, width = 768, vocab = 50304;  ///< heads are 64 wide
  std::string only;
};
/// Times each op, forward and backward, beside the same work in ATen; alternating, medians. Prints
/// a line for each and returns them as JSON.
std::string time_ops(const OpSizes& sizes, int threads, const std::string& dtype);

/// `lathe bench generate CONFIG|RUN`: times writing of text by a run's model, or by one of a config
/// with its initial values; prints a line of JSON.
Exit bench_generate(const Arguments& arguments);

/// Which kernels this machine runs, a line for each kind.
std::string kernels_text();

}  // namespace lathe
