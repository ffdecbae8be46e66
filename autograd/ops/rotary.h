// Declares helpers of the ops that rotate queries and keys.
#pragma once

#include <ATen/core/Tensor.h>

#include "autograd/variable.h"

namespace lathe {

/// Returns `rope_table`, contiguous and in the dtype that rotate() needs for x: float64 if x is
/// float64, else float32. Throws if the shape of `rope_table` does not fit x.
at::Tensor checked_rope_table(const at::Tensor& rope_table, const Variable& x);

}  // namespace lathe
