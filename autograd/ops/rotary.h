// Helpers of the ops that rotate queries and keys.
#pragma once

#include <ATen/core/Tensor.h>

#include "autograd/variable.h"

namespace lathe {

/// Returns `rope_table`, contiguous and in the dtype that rotate() needs for x: float64 if x is
/// float64, else float32. Throws if its shape does not fit.
at::Tensor checked_rope_table(const at::Tensor& rope_table, const Variable& x);

}  // namespace lathe
