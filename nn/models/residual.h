// A branch of a transformer block.
#pragma once

#include "nn/layers.h"

namespace lathe {

/// x + drop(branch). `branch` is called with what its last product is to add where it is written: x
/// itself without dropout, nothing (an undefined Variable) with it.
template <class Branch>
Variable add_branch(const Variable& x, const Dropout& drop, Branch&& branch) {
  return drop.active() ? x + drop(branch(Variable())) : branch(x);
}

}  // namespace lathe
