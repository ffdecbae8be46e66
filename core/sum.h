// Sums whose bits do not depend on the number of threads. ATen cuts a sum to one number into as
// many parts as there are threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// Returns what x.sum(dims, keepdim) does, of float32 accumulated in float32 and of float16 and
/// bfloat16 in float32 with one rounding. `dims`: distinct and not negative; empty: all.
at::Tensor fixed_sum(const at::Tensor& x, at::IntArrayRef dims = {}, bool keepdim = false);

/// Returns what at::sum_to(x, sizes) does, never a view of x.
at::Tensor fixed_sum_to(const at::Tensor& x, at::IntArrayRef sizes);

}  // namespace lathe
