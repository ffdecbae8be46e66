// What the current thread is doing: recording a graph or not, the active compute dtype, the step's randomness.
// Each is set by a guard that restores what was there before; a new thread starts with the defaults.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "core/flops.h"

namespace at {
class Tensor;
}

namespace lathe {

struct Node;
struct OpResult;

/// Where the random numbers of a training step come from: see core/rng.h. Dropout is active exactly while one is set.
struct StepRandom {
  uint64_t seed = 0;
  uint64_t step = 0;
  int64_t first_sample = 0;  ///< index, in the global batch, of the first row of what is being computed
};

struct Mode {
  bool grad = true;                       ///< record a graph
  c10::ScalarType compute = c10::kFloat;  ///< dtype of ops whose policy is Amp::low; kFloat: no autocast
  bool fp8 = false;                       ///< linear layers that have an Fp8Scaling compute in fp8
  bool cache_casts = false;               ///< keep casts of weights until the outermost autocast ends
  int autocast_depth = 0;                 ///< guards around this point
  bool make_storage = true;               ///< false: parameters are made as shapes alone, to be filled by a loader
  std::optional<StepRandom> random;       ///< nullopt: evaluation, dropout is the identity
  FlopCount* flops = nullptr;             ///< where ops add their FLOPs, or null
  /// Called with each node's complete gradient in a backward pass (undefined where none came), or null.
  const std::function<void(const Node&, const at::Tensor&)>* observe_gradient = nullptr;
  /// Called with what each op made, or null.
  const std::function<void(const OpResult&)>* observe_result = nullptr;
};

/// The calling thread's mode.
inline Mode& mode() {
  static thread_local Mode instance;
  return instance;
}

/// Restores the thread's mode on leaving; set fields of mode() after making one.
class ModeGuard {
 public:
  ModeGuard() : saved_(mode()) {}
  ~ModeGuard() { mode() = saved_; }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  Mode saved_;
};

/// While alive, ops record no graph.
struct NoGrad : ModeGuard {
  NoGrad() { mode().grad = false; }
};

/// While alive, parameters are made without storage: on the meta device.
struct ShapesAlone : ModeGuard {
  ShapesAlone() { mode().make_storage = false; }
};

/// While alive, dropout draws from `random`.
struct TrainingStep : ModeGuard {
  explicit TrainingStep(StepRandom random) { mode().random = random; }
};

/// While alive, ops add their FLOPs to `count`.
struct CountFlops : ModeGuard {
  explicit CountFlops(FlopCount& count) { mode().flops = &count; }
};

}  // namespace lathe
