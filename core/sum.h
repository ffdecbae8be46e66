// Declares sums whose bits do not depend on the number of threads. ATen's sums do not have this
// property: to sum all elements to one number, ATen splits the elements into as many parts as there
// are threads. Sums over the last dim are computed by row_sums() of core/rows.h if has_row_sums()
// is true for the tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// Computes x.sum(dims, keepdim). Sums of float16 and bfloat16 are accumulated in float32 and
/// rounded once. The entries of `dims` must be distinct and not negative. If `dims` is empty, sums
/// over all dims.
at::Tensor fixed_sum(const at::Tensor& x, at::IntArrayRef dims = {}, bool keepdim = false);

/// Computes at::sum_to(x, sizes), but never returns a view of x.
at::Tensor fixed_sum_to(const at::Tensor& x, at::IntArrayRef sizes);

}  // namespace lathe
