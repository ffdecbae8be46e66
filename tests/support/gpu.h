// A helper for tests that need a GPU.
#pragma once

#include <torch/cuda.h>

#include "tests/support/catch.h"

namespace lathe::test {

/// Returns whether there is no GPU. If so, reports that the test is skipped.
inline bool skip_without_gpu() {
  if (torch::cuda::is_available()) return false;
  WARN("skipped: no GPU");
  return true;
}

}  // namespace lathe::test
