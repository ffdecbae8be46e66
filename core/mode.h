// What the current thread is doing: recording a graph or not, the active compute dtype, the step's
// randomness. Each is set by a guard that restores what was there before; a new thread starts with
// the defaults.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/flops.h"

namespace at {
class Tensor;
}

namespace lathe {

struct Node;
struct OpResult;
struct BackwardResult;
class Recomputation;
class ForwardHook;
class KeyValueCache;

/// Where the random numbers of a training step come from: see core/rng.h.
struct StepRandom {
  uint64_t seed = 0;
  uint64_t step = 0;
  int64_t first_sample =
      0;  ///< index, in the global batch, of the first row of what is being computed
};

/// How often each stream of random numbers was drawn from since a training step began, by the
/// stream: a layer that runs again draws other numbers, and two layers with one stream differ too.
using StreamUses = std::unordered_map<uint64_t, uint64_t>;

/// Which activations of a model's repeated blocks are kept for backward: all, the blocks' inputs,
/// or the inputs of groups of about sqrt(n) blocks. What is not kept is computed again. Chen et al.
/// 2016, "Training deep nets with sublinear memory cost".
enum class RecomputePolicy : uint8_t { none, blocks, sqrt };

/// What guards set, on each thread its own.
struct Mode {
  bool grad = true;  ///< record a graph
  c10::ScalarType compute =
      c10::kFloat;           ///< dtype of ops whose policy is Amp::low; kFloat: no autocast
  bool fp8 = false;          ///< linear layers that have an Fp8Scaling compute in fp8
  bool cache_casts = false;  ///< keep casts of weights until the outermost autocast ends
  int autocast_depth = 0;    ///< guards around this point
  bool make_storage =
      true;               ///< false: parameters are made as shapes alone, to be filled by a loader
  bool training = false;  ///< layers behave as in training: dropout drops, batch norm takes the
                          ///< batch's statistics
  bool again = false;  ///< what runs has run before (RestoreRngState): running statistics are not
                       ///< moved twice
  std::optional<StepRandom> random;  ///< what `training` draws from
  StreamUses* uses = nullptr;        ///< where `random` is set
  FlopCount* flops = nullptr;        ///< where ops add their FLOPs, or null
  /// Called with each node's complete gradient in a backward pass (undefined where none came), or
  /// null.
  const std::function<void(const Node&, const at::Tensor&)>* observe_gradient = nullptr;
  /// Called with what each op made, or null.
  const std::function<void(const OpResult&)>* observe_result = nullptr;
  /// Called with each tensor that an op is made with and keeps for backward, such as an index or a
  /// mask, or null.
  const std::function<void(const at::Tensor&)>* observe_attribute = nullptr;
  /// Called with what each node's backward made of what it got, or null.
  const std::function<void(const BackwardResult&)>* observe_backward = nullptr;
  bool ranges = false;  ///< steps, modules and ops say their names to ATen's observers: see
                        ///< core/named_range.h
  const ForwardHook* forward_hooks = nullptr;  ///< the innermost that lives: see nn/hooks.h
  Recomputation* recording =
      nullptr;  ///< ops that run are its, and keep nothing: see autograd/recompute.h
  Recomputation* replaying = nullptr;  ///< ops that run are run again for it
  RecomputePolicy recompute = RecomputePolicy::none;
  int64_t* blocks_run =
      nullptr;  ///< where run_blocks() counts blocks that `recompute` is about, or null
  KeyValueCache* cache =
      nullptr;  ///< where attention keeps keys and values, or null: see nn/layers/cache.h
  const at::Tensor* document_starts =
      nullptr;  ///< of the rows of tokens, or null: see nn/layers/documents.h
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
struct MetaInit : ModeGuard {
  MetaInit() { mode().make_storage = false; }
};

/// Whether layers behave as in training.
inline bool is_training() { return mode().training; }

/// While alive, layers behave as in a training step whose random numbers are `random`'s. The same
/// one again draws the same numbers; forwards under one guard draw others each time.
class TrainingStep : public ModeGuard {
 public:
  explicit TrainingStep(const StepRandom& random) {
    mode().training = true;
    mode().random = random;
    mode().uses = &uses_;
  }

 private:
  StreamUses uses_;
};

/// The same for a loop that counts no steps: held around all of it, each forward draws other
/// numbers of `seed`.
struct Training : TrainingStep {
  explicit Training(uint64_t seed = 0) : TrainingStep({.seed = seed}) {}
};

/// While alive, layers behave as outside training. A graph is recorded unless a NoGrad is alive
/// too.
struct Evaluation : ModeGuard {
  Evaluation() {
    mode().training = false;
    mode().random.reset();
    mode().uses = nullptr;
  }
};

/// Training or not, and what was drawn so far: taken before a forward that is to be computed again.
struct DrawState {
  bool training = false;
  std::optional<StepRandom> random;
  StreamUses uses;

  /// As the draws of this thread stand.
  static DrawState now() {
    return {mode().training, mode().random, mode().uses != nullptr ? *mode().uses : StreamUses()};
  }
};

/// While alive, layers draw what they drew after `state` was taken: for computing a forward again.
/// What was drawn around it counts on as if nothing happened.
class RestoreRngState : public ModeGuard {
 public:
  explicit RestoreRngState(DrawState state) : uses_(std::move(state.uses)) {
    mode().training = state.training;
    mode().random = state.random;
    mode().uses = state.random ? &uses_ : nullptr;
    mode().again = true;
  }

 private:
  StreamUses uses_;
};

/// While alive, ops add their FLOPs to `count`.
struct CountFlops : ModeGuard {
  explicit CountFlops(FlopCount& count) { mode().flops = &count; }
};

}  // namespace lathe
