// The residual connection of a transformer block.
#pragma once

#include "nn/layers.h"

namespace lathe {

/// Returns x + drop(branch). Calls `branch` with the residual that the branch's last matrix product
/// adds: x if dropout is inactive, an undefined Variable if it is active.
template <class Branch>
Variable add_branch(const Variable& x, const Dropout& drop, Branch&& branch) {
  return drop.active() ? x + drop(branch(Variable())) : branch(x);
}

}  // namespace lathe
