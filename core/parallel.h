// Loops on ATen's threads.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#include "core/dry_run.h"

namespace lathe {

/// f(first, last) for parts of [begin, end) of `grain` or more, on ATen's threads; nothing in a dry run. What kernels
/// do goes through here.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (!is_dry_run()) at::parallel_for(begin, end, grain, f);
}

}  // namespace lathe
