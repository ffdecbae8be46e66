// The elementwise part of Muon, before the matrix is orthogonalized. Jordan et al. 2024, "Muon: an
// optimizer for hidden layers in neural networks"; torch.optim.Muon.
#pragma once

#include "core/kernels/update.h"

namespace lathe {

/// Computes m = momentum m + (1 - momentum) g and x = m or, with Nesterov momentum, x = (1 -
/// momentum) g + momentum m. m is state 0. Writes x of elements [begin, end) to `out` (float64 if
/// the parameter is, otherwise float32), and returns the sum of its squares.
double muon_direction_cpu(const UpdateArgs& args, const UpdateRule& rule,
                          const StepControl& control, int64_t begin, int64_t end, void* out);

}  // namespace lathe
