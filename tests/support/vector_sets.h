// Runs a function with each set of vector instructions for which Highway was compiled and that this
// CPU supports.
#pragma once

#include <hwy/targets.h>

#include <string>

#include "core/kernels/gemm.h"

namespace lathe::test {

/// Calls f with the name of each instruction set, while kernels use that set.
template <class F>
void on_every_set(F&& f) {
  const int64_t all = hwy::SupportedTargets();
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_NEON, HWY_SCALAR, HWY_EMU128}) {
    if ((all & target) == 0) continue;
    hwy::GetChosenTarget().Update(target);
    if (std::string(vector_set()) == hwy::TargetName(target))
      f(std::string(hwy::TargetName(target)));
  }
  hwy::GetChosenTarget().Update(all);
}

}  // namespace lathe::test
