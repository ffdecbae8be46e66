// What the ops that turn queries and keys share.
#pragma once

#include <ATen/core/Tensor.h>

#include "autograd/variable.h"

namespace lathe {

/// `turns` as rotate() takes it for x, contiguous, in float32, or float64 for x of that; an error
/// where it does not fit.
at::Tensor checked_turns(const at::Tensor& turns, const Variable& x);

}  // namespace lathe
