// The residual connection of a transformer block.
#pragma once

#include "nn/layers.h"

namespace lathe {

/// Returns x + drop(branch). `branch` is called with the residual that its last matrix product adds
/// to its output: x without dropout, an undefined Variable with dropout.
template <class Branch>
Variable add_branch(const Variable& x, const Dropout& drop, Branch&& branch) {
  return drop.active() ? x + drop(branch(Variable())) : branch(x);
}

}  // namespace lathe
