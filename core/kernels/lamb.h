// Declares LAMB (You et al. 2020, "Large batch optimization for deep learning: training BERT in 76
// minutes", algorithm 2):
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + wd p;  p -= lr |p| / |u| u
// When the norms |p| and |u| are known, the rule LambApply (core/kernels/rules/lamb.h) updates p.
#pragma once

#include "core/kernels/update.h"

namespace lathe {

/// The sums of squares of the elements of p and u.
struct LambSums {
  double param = 0, direction = 0;
};
/// Updates the moments m (state[0]) and v (state[1]) of elements [begin, end). Returns the sums of
/// squares of p and u over these elements.
LambSums lamb_moments_cpu(const UpdateArgs& args, const UpdateRule& rule,
                          const StepControl& control, int64_t begin, int64_t end);

}  // namespace lathe
