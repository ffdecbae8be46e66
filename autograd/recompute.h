// Implements recomputation (activation checkpointing): a part of a graph keeps only its inputs, and
// is computed again when backward reaches the part. Chen et al. 2016, "Training deep nets with
// sublinear memory cost".
//
// The graph has the same nodes as without recomputation. Only the tensors that ops saved are
// dropped, and running the part again restores them into these nodes. So the backward pass runs in
// the same order, and all results are bitwise equal to the results without recomputation. Hooks,
// grad() and second derivatives work as usual.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "autograd/pipeline_stage.h"
#include "autograd/saved_packer.h"
#include "autograd/sequence_split.h"
#include "autograd/variable.h"
#include "core/mode.h"

namespace lathe {

/// How much of a part recompute_selectively() keeps. It keeps the results of the matrix products,
/// convolutions and attention with the most FLOPs per byte. Their bytes are limited to `share`
/// times the bytes that the part's ops would save without recomputation. A part may also use the
/// bytes that previous parts left unused. In a similar way, Korthikanti et al. 2022, "Reducing
/// activation recomputation in large transformer models", recompute only the inner results of
/// attention.
struct Selection {
  double share = 0.4;
  double spare = 0;           ///< bytes that previous parts left unused
  bool products_only = true;  ///< false: any op with FLOPs may be kept
};

/// The nodes of one part of a graph, and how to run it again under the same conditions: random
/// numbers, autocast and training mode. Running statistics (of batch norm and fp8) are not updated
/// a second time, and FLOPs are not counted a second time, which is the convention of MFU
/// (Chowdhery et al. 2022).
class Recomputation : public std::enable_shared_from_this<Recomputation> {
 public:
  /// Stores the thread's mode. `again` runs the part. If `selection` is not null, all tensors that
  /// the part's ops save stay alive until select() chooses which to keep.
  Recomputation(std::function<void()> again, const Selection* selection);
  /// Appends a node with its op's inputs and outputs. `forward` has the FLOPs of the op's forward.
  void append(const std::shared_ptr<Node>& node, std::span<const Variable> inputs,
              std::span<const at::Tensor> outputs, const Flops& forward);
  /// Gives up `result`, which an in-place op is about to change: the op that made `result` is not
  /// kept.
  void release(const at::Tensor& result);
  /// Chooses the ops whose results are kept, and drops the tensors that the other ops save. Call
  /// this function after the part has returned, while the caller holds only the part's result.
  void select(Selection& selection);
  /// Returns the next op in order with its results if it is called `name` and was kept. Otherwise,
  /// returns an empty KeptOp.
  detail::KeptOp next_kept(const char* name);
  /// Returns the next node in order if its op is called `name`, and otherwise null.
  std::shared_ptr<Node> peek(const char* name) const;
  /// Returns the next node in order, or null if that node no longer exists. Throws if op `name` or
  /// its inputs differ from the first run.
  std::shared_ptr<Node> next(const char* name, std::span<const Variable> inputs);
  /// Appends an attribute that an op is constructed with, such as an index.
  void append_attribute(const at::Tensor& attribute);
  /// Checks that the next attribute has not been changed in place since it was appended.
  void check_attribute(const at::Tensor& attribute);
  /// Appends a hook that the part registers on a Variable.
  void append_hook(HookHandle hook);
  /// Returns the next hook in order, which the part must not register a second time.
  HookHandle next_hook();
  /// Runs the part again, which restores the saved tensors of its nodes. Does nothing after the
  /// first call.
  void run();

 private:
  struct Entry {
    std::weak_ptr<Node> node;
    c10::SmallVector<int64_t, 4> versions;  // versions of the inputs
    bool is_kept = false;                   // whether the op does not run again
    std::vector<at::Tensor> outputs{};      // the op's results, unless the op rebuilds them
  };
  /// Returns whether select() may keep an op with these FLOPs.
  bool may_keep(const Flops& forward) const {
    return forward.matmul > 0 || (!products_only_ && forward.other > 0);
  }
  /// The tensors that an op saves while the part runs for the first time. `outputs` is empty unless
  /// the op may be kept.
  struct Held {
    size_t entry;
    Flops forward;
    std::vector<at::Tensor> inputs, inside, outputs;
    std::vector<int64_t> versions{};  // versions of the outputs
  };
  std::function<void()> again_;
  bool is_selective_, products_only_;
  std::vector<Entry> entries_;
  std::vector<Held> held_;
  std::vector<int64_t> attributes_;  // versions of the attributes
  std::vector<HookHandle> hooks_;
  size_t next_ = 0, next_attribute_ = 0, next_hook_ = 0;
  DrawState draws_;
  at::ScalarType compute_;
  bool fp8_, cache_casts_;
  c10::impl::LocalDispatchKeySet keys_;  // ATen's dispatch keys in the first run
};

namespace detail {

/// Records the ops of this thread in one Recomputation, until destroyed.
class Recording : public ModeGuard {
 public:
  /// If `selection` is not null, the recording is selective and must end with select().
  explicit Recording(std::function<void()> again, const Selection* selection = nullptr);
  ~Recording();
  /// Ends a selective recording.
  void select(Selection& selection) { recomputation_->select(selection); }

 private:
  std::shared_ptr<Recomputation> recomputation_;
};

/// A Variable that is an input of a recomputed part. The thread's SavedPacker packs the input if
/// that packer is exact and the input is not a parameter.
class KeptInput {
 public:
  explicit KeptInput(const Variable& v);
  /// Returns the input, at the same position in the graph.
  Variable value() const;

 private:
  Variable value_;  // undefined if the input is packed
  std::shared_ptr<const PackedTensor> packed_;
  Edge edge_;
  int64_t version_ = 0;
};

/// Returns the form in which an input is kept: a KeptInput for a Variable, and a copy of anything
/// else.
template <class T>
auto kept(const T& input) {
  if constexpr (std::is_same_v<T, Variable>)
    return KeptInput(input);
  else
    return input;
}

/// Returns the input that kept() stored as `input`.
template <class T>
decltype(auto) given(T& input) {
  if constexpr (std::is_same_v<T, KeptInput>)
    return input.value();
  else
    return (input);
}

/// Returns a function that calls a copy of fn with these inputs.
template <class F, class... In>
std::function<void()> call_later(const F& fn, const In&... inputs) {
  return [fn, all = std::make_tuple(kept(inputs)...)]() mutable {
    std::apply([&](auto&... each) { fn(given(each)...); }, all);
  };
}

}  // namespace detail

/// Returns fn(inputs...) and keeps only the inputs and the result. In the backward pass a copy of
/// fn is called again to restore the tensors that its ops save, which are then freed as usual. `fn`
/// may take and return any types, usually Variables. It must compute the same values in each call
/// from its inputs, its captures and parameters. None of these may be changed in place between the
/// calls; if one was, the error names the op that reads it. Objects that fn captured by reference,
/// such as a module, must live until the backward pass. Hooks of modules are called again; hooks
/// that fn registers on Variables are registered once. Calls can be nested. If no graph is
/// recorded, this is a plain call.
template <class F, class... In>
auto recompute(const F& fn, const In&... inputs) {
  // Inside another recomputation, this is a plain call, because the outer recomputation drops the
  // saved tensors.
  if (!mode().grad || mode().recording != nullptr) return fn(inputs...);
  const detail::Recording recording(detail::call_later(fn, inputs...));
  return fn(inputs...);
}

/// Returns fn(inputs...) as recompute() does, but keeps the results of some ops, which are then not
/// computed again (see Selection). This takes less time than recompute() and saves less memory.
/// `fn` must return a value.
template <class F, class... In>
auto recompute_selectively(Selection& selection, const F& fn, const In&... inputs) {
  if (!mode().grad || mode().recording != nullptr) return fn(inputs...);
  detail::Recording recording(detail::call_later(fn, inputs...), &selection);
  auto result = fn(inputs...);
  recording.select(selection);
  return result;
}

/// Makes run_blocks() follow a policy on this thread, until destroyed. If `blocks_run` is not null,
/// it counts the blocks that the policy recomputes.
struct RecomputeBlocks : ModeGuard {
  explicit RecomputeBlocks(RecomputePolicy policy, int64_t* blocks_run = nullptr) {
    mode().recompute = policy;
    mode().blocks_run = blocks_run;
  }
};

/// Returns the policy called "none", "blocks", "blocks.FIRST-LAST", "selective" or "sqrt"; nullopt
/// for another name.
std::optional<RecomputePolicy> recompute_policy(std::string_view name);

/// Returns the number of blocks in one recomputation: 1, or ceil(sqrt(n)) for `sqrt`. The last
/// recomputation of a model may have fewer blocks.
size_t blocks_per_group(RecomputePolicy policy, size_t n);

namespace detail {

/// Calls the thread's block hooks around a block, but not around the blocks within it.
class BlockScope {
 public:
  explicit BlockScope(size_t block)
      : hooks_(std::exchange(mode().block_hooks, nullptr)), block_(block) {
    if (hooks_ != nullptr) hooks_->begin(block_, mode().replaying != nullptr);
  }
  ~BlockScope() {
    mode().block_hooks = hooks_;
    if (hooks_ != nullptr) hooks_->end(block_, mode().replaying != nullptr);
  }
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  BlockHooks* hooks_;
  size_t block_;
};

template <class X, class F>
X run_block(const F& f, size_t i, const X& x) {
  const BlockScope scope(i);
  return f(i, x);
}

/// Runs the blocks [first, last) of a model's `n` blocks.
template <class X, class F>
X run_some_blocks(size_t first, size_t last, size_t n, X x, const F& f) {
  const RecomputePolicy policy = mode().recompute;
  const bool keeps_all = policy.kind == RecomputePolicy::none || !mode().grad;
  const auto run = [f, keeps_all, policy](size_t i, const X& y, Selection* selection) -> X {
    if (keeps_all || i < policy.first || i > policy.last) return run_block(f, i, y);
    if (mode().blocks_run != nullptr) ++*mode().blocks_run;
    const auto block = [f, i](const X& z) { return run_block(f, i, z); };
    return selection != nullptr ? recompute_selectively(*selection, block, y) : recompute(block, y);
  };

  // Within a group of blocks that is recomputed, each block is recomputed separately, so that only
  // the activations of one block and the inputs of the other blocks are in memory at the same time.
  const size_t group = blocks_per_group(policy, n);
  if (keeps_all || group == 1) {
    Selection selection;
    const bool is_selective = policy.kind == RecomputePolicy::selective;
    for (size_t i = first; i < last; ++i) x = run(i, x, is_selective ? &selection : nullptr);
    return x;
  }
  for (size_t begin = first; begin < last; begin += group) {
    const size_t end = std::min(begin + group, last);
    x = recompute(
        [run, begin, end](X y) {
          for (size_t i = begin; i < end; ++i) y = run(i, y, nullptr);
          return y;
        },
        x);
  }
  return x;
}

/// Runs the n blocks, or only the blocks of this thread's stage of a pipeline.
template <class X, class F>
X run_blocks_of_stage(size_t n, X x, const F& f) {
  if (mode().stage == nullptr || !(mode().grad || mode().stage->serves_passes_without_graph()))
    return run_some_blocks(0, n, n, std::move(x), f);

  if constexpr (std::is_same_v<X, Variable>) {
    PipelineStage* const stage = mode().stage;
    do {
      mode().stage = nullptr;
      const auto [first, last] = stage->blocks(n);
      x = run_some_blocks(first, last, n, stage->enter(std::move(x)), f);
      mode().stage = stage;
      x = stage->leave(std::move(x));
    } while (stage->has_more_blocks());
    return x;
  } else {
    refuse_several_inputs("dist.pipeline");
  }
}

}  // namespace detail

/// Runs the n repeated blocks of a model on x in turn, under the thread's RecomputePolicy. A stage
/// of a pipeline (dist.pipeline) runs only its own blocks. With dist.sequence_parallel, a process
/// runs the blocks only at the positions that it holds. f(i, x) runs block i and returns the
/// argument of the next block. f is copied and must meet the conditions for the fn of recompute().
template <class X, class F>
X run_blocks(size_t n, X x, const F& f) {
  const SequenceSplit* const split = mode().grad ? mode().sequence_split : nullptr;
  if (split == nullptr) return detail::run_blocks_of_stage(n, std::move(x), f);

  if constexpr (std::is_same_v<X, Variable>) {
    // Read the split from mode() when the block runs: the backward pass, which may run the block
    // again, sets another split.
    const auto on_part = [f](size_t i, const Variable& y) {
      const SplitBlock scope(*mode().sequence_split);
      return f(i, y);
    };
    return split->leave(detail::run_blocks_of_stage(n, split->enter(x), on_part));
  } else {
    refuse_several_inputs("dist.sequence_parallel");
  }
}

/// Runs the modules `blocks` on x in turn. The modules must exist until backward.
template <class Blocks>
Variable run_blocks(const Blocks& blocks, Variable x) {
  return run_blocks(blocks.size(), std::move(x),
                    [&blocks](size_t i, const Variable& y) { return blocks[i](y); });
}

}  // namespace lathe
