// Defines the mode of the current thread, such as whether it records a graph, the compute dtype and
// the source of random numbers. Guards set fields of the mode and restore the previous values. A
// new thread starts with the defaults.
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

/// The source of a training step's random numbers; see core/rng.h.
struct StepRandom {
  uint64_t seed = 0;
  uint64_t step = 0;
  /// The index, within the global batch, of the first row that is being computed.
  int64_t first_sample = 0;
};

/// For each stream of random numbers, the number of draws from the stream since the training step
/// began. Each draw from a stream gives new numbers, even if a layer is called twice or two layers
/// have the same stream.
using StreamUses = std::unordered_map<uint64_t, uint64_t>;

/// Functions that run_blocks() (autograd/recompute.h) calls around each repeated block of a model,
/// but not around blocks within a block. `block` is the index of the block in the model, from 0.
/// `is_recomputed` is true if the block runs again because its backward pass follows.
class BlockHooks {
 public:
  virtual ~BlockHooks() = default;
  /// Runs before the block.
  virtual void begin(size_t block, bool is_recomputed) = 0;
  /// Runs after the block has returned or thrown an exception. Must not throw.
  virtual void end(size_t block, bool is_recomputed) = 0;
  /// Returns whether the hooks also apply to forward passes of a frozen model (FrozenForward).
  virtual bool serves_any_pass() const { return false; }
};

/// Decides which activations of a model's repeated blocks are kept for the backward pass. Other
/// activations are recomputed (Chen et al. 2016, "Training deep nets with sublinear memory cost").
struct RecomputePolicy {
  /// With `none`, all activations are kept. With `blocks`, blocks `first` to `last` (counted from
  /// 0, both included) keep only their inputs, and other blocks keep all activations. With `sqrt`,
  /// the n blocks form groups of about sqrt(n) blocks, and only the input of each group is kept.
  /// With `selective`, each block keeps its input and the results of ops with many FLOPs per byte
  /// (Selection in autograd/recompute.h).
  enum Kind : uint8_t { none, blocks, sqrt, selective };
  Kind kind = none;
  size_t first = 0, last = SIZE_MAX;

  constexpr RecomputePolicy(Kind kind = none) : kind(kind) {}
  constexpr RecomputePolicy(size_t first, size_t last) : kind(blocks), first(first), last(last) {}
};

/// Determines how layers create their parameters. With `zeros`, parameters are filled with zeros.
/// With `without_memory`, their memory is allocated later (core/storage.h). With `shapes`,
/// parameters and buffers are on the meta device, without data. `zeros` and `without_memory` do not
/// apply to buffers.
enum class NewParameters : uint8_t { zeros, without_memory, shapes };

/// The state that guards set, separate for each thread.
struct Mode {
  bool grad = true;  ///< whether ops record a graph
  /// Dtype of ops whose policy is Amp::low; kFloat: no autocast.
  c10::ScalarType compute = c10::kFloat;
  bool fp8 = false;          ///< whether linear layers that have an Fp8Scaling compute in fp8
  bool cache_casts = false;  ///< whether casts of weights are kept until the outermost autocast
                             ///< ends
  int autocast_depth = 0;    ///< number of autocast guards that exist
  NewParameters new_parameters = NewParameters::zeros;
  bool training = false;  ///< whether layers behave as in training: dropout drops elements, and
                          ///< batch norm uses the statistics of the batch
  bool adapters = true;   ///< whether linear layers add the output of their adapters
  /// Whether a forward pass is being recomputed (RestoreRngState). If so, layers must not update
  /// their running statistics again.
  bool is_recomputing = false;
  std::optional<StepRandom> random;  ///< source of the random numbers of a training step
  StreamUses* uses = nullptr;        ///< draws of the training step; set together with `random`
  FlopCount* flops = nullptr;        ///< the count to which ops add their FLOPs; null: FLOPs are
                                     ///< not counted
  /// The innermost observer (autograd/observer.h); null if there is none.
  const ObserveOps* observers = nullptr;
  ChainTrace* chain = nullptr;  ///< records the ops of fused() (autograd/fused.h); null outside of
                                ///< fused()
  /// Defers elementwise ops (autograd/deferred.h); null: ops run immediately.
  detail::DeferOps* deferred = nullptr;
  bool ranges = false;  ///< whether steps, modules and ops report their names to ATen's observers
                        ///< (core/named_range.h)
  const ForwardHook* forward_hooks = nullptr;  ///< the innermost hook (nn/hooks.h); null if there
                                               ///< is none
  /// Records the ops that run, so that they can be recomputed (autograd/recompute.h); null: no ops
  /// are recorded. A recording drops the tensors that these ops save. A selective recording chooses
  /// later which tensors it drops.
  Recomputation* recording = nullptr;
  Recomputation* replaying = nullptr;  ///< the recomputation that is running; null if there is none
  SavedPacker* packer = nullptr;  ///< packs saved tensors (autograd/saved_packer.h); null: they are
                                  ///< not packed
  RecomputePolicy recompute{};    ///< the policy that run_blocks() follows
  /// The count to which run_blocks() adds the number of blocks that `recompute` recomputes; null:
  /// blocks are not counted.
  int64_t* blocks_run = nullptr;
  BlockHooks* block_hooks = nullptr;  ///< hooks that run_blocks() calls around each block; null:
                                      ///< none
  /// The pipeline stage whose blocks run_blocks() runs (autograd/pipeline_stage.h); null: all
  /// blocks run.
  PipelineStage* stage = nullptr;
  /// The cache in which attention keeps keys and values (nn/layers/cache.h); null: it does not keep
  /// them.
  KeyValueCache* cache = nullptr;
  /// The list to which updates of running statistics are appended (core/running_statistic.h); null:
  /// updates are applied immediately.
  std::vector<RunningStatistic>* running_statistics = nullptr;
  /// The positions of each row of tokens that this process computes (dist/context_ranks.h); null:
  /// all positions.
  const PositionPart* position_part = nullptr;
  /// Divides positions among processes while run_blocks() runs blocks and records a graph
  /// (dist/sequence_ranks.h); null: positions are not divided.
  const SequenceSplit* sequence_split = nullptr;
  /// The positions that this process has while it runs a block whose positions `sequence_split`
  /// divides. Null at other times.
  const SequencePart* sequence_part = nullptr;
  /// For each token, the position in the row at which the token's document begins
  /// (nn/layers/documents.h), int64 [B, T]. Null: each row is one document.
  const at::Tensor* document_starts = nullptr;
};

namespace detail {
inline constinit thread_local Mode mode_of_thread;
}

/// Returns the calling thread's mode.
inline Mode& mode() { return detail::mode_of_thread; }

/// Saves the thread's mode when constructed and restores it when destroyed. Change fields of mode()
/// after constructing a guard. Destroy guards on the thread that constructed them, in the reverse
/// order of construction.
class ModeGuard {
 public:
  ModeGuard() : saved_(mode()) {}
  ~ModeGuard() { mode() = saved_; }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  Mode saved_;
};

/// Makes ops record no graph until destroyed.
struct NoGrad : ModeGuard {
  NoGrad() { mode().grad = false; }
};

/// Makes layers create parameters and buffers on the meta device, without data, until destroyed.
struct MetaInit : ModeGuard {
  MetaInit() { mode().new_parameters = NewParameters::shapes; }
};

/// Makes layers create parameters that have sizes but no memory (core/storage.h), until destroyed.
/// New buffers have memory.
struct WithoutMemory : ModeGuard {
  WithoutMemory() { mode().new_parameters = NewParameters::without_memory; }
};

/// Returns whether layers behave as in training.
inline bool is_training() { return mode().training; }

/// Makes layers behave as in a training step whose random numbers come from `random`, until
/// destroyed. Two guards with equal `random` give the same numbers. Within one guard, each forward
/// pass draws new numbers.
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

/// A TrainingStep for a loop that does not count steps. Until it is destroyed, each forward pass
/// draws new numbers, which `seed` determines. Construct it before the loop, because each new guard
/// with an equal `seed` draws the same numbers again.
struct Training : TrainingStep {
  explicit Training(uint64_t seed = 0) : TrainingStep({.seed = seed}) {}
};

/// Makes layers behave as in evaluation until destroyed. Ops still record a graph, unless there is
/// also a NoGrad.
struct Evaluation : ModeGuard {
  Evaluation() {
    mode().training = false;
    mode().random.reset();
    mode().uses = nullptr;
  }
};

/// A copy of the thread's training mode, its source of random numbers and its counts of draws. The
/// copy is taken before a forward pass that will be recomputed.
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

/// Makes layers draw the same numbers as after `state` was taken, until destroyed, so that a
/// forward pass can be recomputed. Draws after this guard was destroyed are not affected.
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

/// Makes ops add their FLOPs to `count` until destroyed.
struct CountFlops : ModeGuard {
  explicit CountFlops(FlopCount& count) { mode().flops = &count; }
};

}  // namespace lathe
