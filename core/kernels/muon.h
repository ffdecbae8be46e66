// Declares the elementwise part of Muon, before the matrix is orthogonalized (Jordan et al. 2024,
// "Muon: an optimizer for hidden layers in neural networks"; torch.optim.Muon).
#pragma once

#include "core/kernels/update.h"

namespace lathe {

/// Computes m = momentum m + (1 - momentum) g, where m is state[0] and g the gradient, and x = m.
/// With Nesterov momentum, x = (1 - momentum) g + momentum m. Writes x of elements [begin, end) to
/// `out`, which is float64 if the parameter is float64, otherwise float32. Returns the sum of
/// squares of x.
double muon_direction_cpu(const UpdateArgs& args, const UpdateRule& rule,
                          const StepControl& control, int64_t begin, int64_t end, void* out);

}  // namespace lathe
