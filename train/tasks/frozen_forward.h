// The forward pass of a model that a task asks for targets, not for gradients.
#pragma once

#include "core/mode.h"

namespace lathe {

/// While alive, forward passes record no graph, drop nothing and leave adapters out. They are not
/// part of what observes, recomputes or divides the trained model: its hooks, its blocks, its
/// stage of a pipeline, and its running statistics.
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
