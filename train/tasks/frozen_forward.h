// Declares the forward pass of a frozen model, from which a task takes targets but no gradients.
#pragma once

#include "core/mode.h"

namespace lathe {

/// Makes forward passes record no graph and use neither dropout nor adapters until destroyed. These
/// passes ignore the forward hooks of the trained model, the recomputation of its blocks, and its
/// pipeline stage. They do not change running statistics.
struct FrozenForward : Evaluation {
  FrozenForward() {
    mode().grad = false;
    mode().adapters = false;
    mode().forward_hooks = nullptr;
    mode().recompute = RecomputePolicy::none;
    mode().blocks_run = nullptr;
    mode().stage = nullptr;
    BlockHooks*& hooks = mode().block_hooks;
    if (hooks != nullptr && !hooks->serves_any_pass()) hooks = nullptr;
  }
};

}  // namespace lathe
