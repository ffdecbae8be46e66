// The mode of the current thread: whether it records a graph, the compute dtype, the source of
// random numbers. Guards set the fields and restore the previous values; a new thread starts with
// the defaults.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/flops.h"

namespace at {
class Tensor;
}

namespace lathe {

class ObserveOps;
class ChainTrace;
namespace detail {
class DeferOps;
}
class Recomputation;
class ForwardHook;
class KeyValueCache;
class PipelineStage;
class SavedPacker;
struct PositionPart;
struct SequencePart;
class SequenceSplit;
struct RunningStatistic;

/// The source of a training step's random numbers: see core/rng.h.
struct StepRandom {
  uint64_t seed = 0;
  uint64_t step = 0;
  /// Index in the global batch of the first row that is being computed.
  int64_t first_sample = 0;
};

/// Counts for each stream of random numbers how often it was drawn from since a training step
/// began. Each draw from a stream gives new numbers, even if a layer is called twice or two layers
/// have the same stream.
using StreamUses = std::unordered_map<uint64_t, uint64_t>;

/// Functions that run_blocks() (autograd/recompute.h) calls around each repeated block of a model,
/// but not around blocks within a block. `block`: the block's index in the model, from 0.
/// `is_recomputed`: the block runs again for its backward pass, which follows.
class BlockHooks {
 public:
  virtual ~BlockHooks() = default;
  /// Called before the block runs.
  virtual void begin(size_t block, bool is_recomputed) = 0;
  /// Called after the block has run or has thrown. Must not throw.
  virtual void end(size_t block, bool is_recomputed) = 0;
  /// Returns whether the hooks also apply to forward passes of a frozen model (FrozenForward).
  virtual bool serves_any_pass() const { return false; }
};

/// Decides which activations of a model's repeated blocks are kept for backward. The others are
/// recomputed. Chen et al. 2016, "Training deep nets with sublinear memory cost".
struct RecomputePolicy {
  /// none: all activations are kept. blocks: blocks `first` to `last` (from 0, both included) keep
  /// only their inputs, and other blocks keep everything. sqrt: the n blocks form groups of about
  /// sqrt(n) blocks, and only the input of each group is kept. selective: each block keeps its
  /// input and the results of ops with many FLOPs per byte (Selection in autograd/recompute.h).
  enum Kind : uint8_t { none, blocks, sqrt, selective };
  Kind kind = none;
  size_t first = 0, last = SIZE_MAX;

  constexpr RecomputePolicy(Kind kind = none) : kind(kind) {}
  constexpr RecomputePolicy(size_t first, size_t last) : kind(blocks), first(first), last(last) {}
};

/// How layers create their parameters. zeros: filled with zeros. without_memory: memory is
/// allocated later (core/storage.h). shapes: on the meta device, without data. Only `shapes` also
/// applies to buffers; the other two create buffers as usual.
enum class NewParameters : uint8_t { zeros, without_memory, shapes };

/// The state that guards set, separate for each thread.
struct Mode {
  bool grad = true;  ///< record a graph
  /// Dtype of ops whose policy is Amp::low; kFloat: no autocast.
  c10::ScalarType compute = c10::kFloat;
  bool fp8 = false;          ///< linear layers that have an Fp8Scaling compute in fp8
  bool cache_casts = false;  ///< keep casts of weights until the outermost autocast ends
  int autocast_depth = 0;    ///< how many autocast guards are alive
  NewParameters new_parameters = NewParameters::zeros;
  bool training = false;  ///< layers behave as in training: dropout drops elements, batch norm uses
                          ///< the batch's statistics
  bool adapters = true;   ///< linear layers add the output of their adapters
  /// A forward pass is being recomputed (RestoreRngState). Layers must then not update their
  /// running statistics, which the first pass has updated.
  bool is_recomputing = false;
  std::optional<StepRandom> random;  ///< source of the random numbers of a training step
  StreamUses* uses = nullptr;        ///< set together with `random`
  FlopCount* flops = nullptr;        ///< where ops add their FLOPs, or null
  /// The innermost observer that is alive, or null: see autograd/observer.h.
  const ObserveOps* observers = nullptr;
  ChainTrace* chain = nullptr;  ///< records the ops of fused(), or null: see autograd/fused.h
  /// Defers elementwise ops, or null: see autograd/deferred.h.
  detail::DeferOps* deferred = nullptr;
  bool ranges = false;  ///< steps, modules and ops report their names to ATen's observers: see
                        ///< core/named_range.h
  const ForwardHook* forward_hooks = nullptr;  ///< the innermost hook, or null: see nn/hooks.h
  /// Records the ops that run, so that they can be recomputed, or null: see autograd/recompute.h. A
  /// recording drops the tensors that these ops save; a selective one chooses later which to drop.
  Recomputation* recording = nullptr;
  Recomputation* replaying = nullptr;  ///< the recomputation that is running, or null
  SavedPacker* packer = nullptr;  ///< packs saved tensors, or null: see autograd/saved_packer.h
  RecomputePolicy recompute{};    ///< the policy that run_blocks() follows
  /// Where run_blocks() counts the blocks that `recompute` recomputes, or null.
  int64_t* blocks_run = nullptr;
  BlockHooks* block_hooks = nullptr;  ///< run_blocks() calls them around each block; or null
  /// The stage of a pipeline whose blocks run_blocks() runs, or null: all blocks. See
  /// autograd/pipeline_stage.h.
  PipelineStage* stage = nullptr;
  /// Where attention keeps keys and values, or null: see nn/layers/cache.h.
  KeyValueCache* cache = nullptr;
  /// Where running statistics are recorded instead of updated, or null: see
  /// core/running_statistic.h.
  std::vector<RunningStatistic>* running_statistics = nullptr;
  /// The positions of each row of tokens that this process computes, or null: all. See
  /// dist/context_ranks.h.
  const PositionPart* position_part = nullptr;
  /// Divides positions among processes while run_blocks() runs blocks and records a graph, or null:
  /// see dist/sequence_ranks.h.
  const SequenceSplit* sequence_split = nullptr;
  /// The positions that this process has while it runs a block whose positions `sequence_split`
  /// divides; otherwise null.
  const SequencePart* sequence_part = nullptr;
  /// The position in its row at which each token's document begins, int64 [B, T]. Null: each row is
  /// one document. See nn/layers/documents.h.
  const at::Tensor* document_starts = nullptr;
};

namespace detail {
inline constinit thread_local Mode mode_of_thread;
}

/// Returns the calling thread's mode.
inline Mode& mode() { return detail::mode_of_thread; }

/// Saves the thread's mode when constructed and restores it when destroyed. Change fields of mode()
/// after constructing a guard. Destroy guards on the thread that constructed them, in reverse
/// order.
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

/// While alive, parameters and buffers are made without storage: on the meta device.
struct MetaInit : ModeGuard {
  MetaInit() { mode().new_parameters = NewParameters::shapes; }
};

/// While alive, new parameters have sizes but no memory (core/storage.h). Buffers have memory.
struct WithoutMemory : ModeGuard {
  WithoutMemory() { mode().new_parameters = NewParameters::without_memory; }
};

/// Returns whether layers behave as in training.
inline bool is_training() { return mode().training; }

/// While alive, layers behave as in a training step whose random numbers come from `random`. Two
/// guards with equal `random` give the same numbers; within one guard, each forward pass draws new
/// ones.
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

/// A TrainingStep for a loop that does not count steps: while it is alive, each forward pass draws
/// new numbers, which `seed` determines. Construct it before the loop, because each new guard with
/// an equal `seed` draws the same numbers again.
struct Training : TrainingStep {
  explicit Training(uint64_t seed = 0) : TrainingStep({.seed = seed}) {}
};

/// While alive, layers behave as in evaluation. A graph is still recorded unless a NoGrad is alive
/// too.
struct Evaluation : ModeGuard {
  Evaluation() {
    mode().training = false;
    mode().random.reset();
    mode().uses = nullptr;
  }
};

/// A copy of the thread's training mode, source of random numbers and counts of draws, taken before
/// a forward pass that will be recomputed.
struct DrawState {
  bool training = false;
  std::optional<StepRandom> random;
  StreamUses uses;

  /// Returns the state of this thread.
  static DrawState now() {
    return {.training = mode().training,
            .random = mode().random,
            .uses = mode().uses != nullptr ? *mode().uses : StreamUses()};
  }
};

/// While alive, layers draw the numbers that they drew after `state` was taken, so that a forward
/// pass can be recomputed. Draws after the guard's end are not affected.
class RestoreRngState : public ModeGuard {
 public:
  explicit RestoreRngState(DrawState state) : uses_(std::move(state.uses)) {
    mode().training = state.training;
    mode().random = state.random;
    mode().uses = state.random ? &uses_ : nullptr;
    mode().is_recomputing = true;
  }

 private:
  StreamUses uses_;
};

/// While alive, ops add their FLOPs to `count`.
struct CountFlops : ModeGuard {
  explicit CountFlops(FlopCount& count) { mode().flops = &count; }
};

}  // namespace lathe
