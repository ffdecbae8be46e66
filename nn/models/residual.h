// The residual connection of a transformer block.
#pragma once

#include "nn/layers.h"

namespace lathe {

/// Returns x + drop(branch). If dropout is inactive, calls `branch` with x, and the last matmul of
/// the branch must add x to its result. If dropout is active, calls `branch` with an undefined
/// Variable, and adds x after the dropout.
template <class Branch>
Variable add_branch(const Variable& x, const Dropout& drop, Branch&& branch) {
  return drop.active() ? x + drop(branch(Variable())) : branch(x);
}

}  // namespace lathe
