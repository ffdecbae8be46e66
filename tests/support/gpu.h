// For tests that need a GPU.
#pragma once

#include <torch/cuda.h>

#include "tests/support/catch.h"

namespace lathe::test {

/// Returns whether there is no GPU, and reports that the test is skipped then.
inline bool skip_without_gpu() {
  if (torch::cuda::is_available()) return false;
  WARN("skipped: no GPU");
  return true;
}

}  // namespace lathe::test
