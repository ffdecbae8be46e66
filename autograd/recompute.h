// Recomputation (activation checkpointing): a part of a graph keeps its inputs alone, and is
// computed again when backward comes to it. Chen et al. 2016, "Training deep nets with sublinear
// memory cost".
//
// The graph is the one that is made without: only what ops saved is dropped, and brought back into
// the same nodes by running the part again. So the order of the pass, hooks, grad(), second
// derivatives and every bit are the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "autograd/variable.h"
#include "core/mode.h"

namespace lathe {

/// Nodes of one part of a graph, and how to run it again as it ran first: with the same random
/// numbers, autocast and mode of training. Statistics (batch norm's, fp8's) are not moved a second
/// time, and FLOPs not counted: MFU's convention (Chowdhery et al. 2022).
class Recomputation : public std::enable_shared_from_this<Recomputation> {
 public:
  /// In the thread's mode; `again` runs the part.
  explicit Recomputation(std::function<void()> again);
  /// Appends a node that was made of `inputs`.
  void append(std::weak_ptr<Node> node, std::span<const Variable> inputs);
  /// The next node in order, or null where it is gone. An error where op `name` or its inputs are
  /// not what they were.
  std::shared_ptr<Node> next(const char* name, std::span<const Variable> inputs);
  /// Appends an attribute of an op, such as an index, that the op is made with.
  void append_attribute(const at::Tensor& attribute);
  /// Checks that the next attribute has not been changed in place since it was appended.
  void check_attribute(const at::Tensor& attribute);
  /// Appends a hook that the part registers on a Variable.
  void append_hook(HookHandle hook);
  /// The next hook in order. The part must not register it once more when it runs again.
  HookHandle next_hook();
  /// Runs the part again, which brings back what its nodes saved. Once.
  void run();

 private:
  struct Entry {
    std::weak_ptr<Node> node;
    c10::SmallVector<int64_t, 4> versions;  // of the inputs
  };
  std::function<void()> again_;
  std::vector<Entry> entries_;
  std::vector<int64_t> attributes_;  // their versions
  std::vector<HookHandle> hooks_;
  size_t next_ = 0, next_attribute_ = 0, next_hook_ = 0;
  DrawState draws_;
  at::ScalarType compute_;
  bool fp8_, cache_casts_;
};

namespace detail {

/// While alive, the ops of this thread are a Recomputation's.
class Recording : public ModeGuard {
 public:
  explicit Recording(std::function<void()> again);
  ~Recording();

 private:
  std::shared_ptr<Recomputation> recomputation_;
};

}  // namespace detail

/// fn(inputs...), of which only the inputs and the result are kept; what its ops saved is made
/// again by a second call of (a copy of) fn in the backward pass, and then freed as usual. `fn`
/// takes and returns what it likes, usually Variables; it must compute the same each time, from its
/// inputs, what it captured and parameters, none of which may change in place in between (an error
/// that names the op). What it captured by reference, a module say, must live until then. Hooks of
/// modules are called again; hooks that fn registers on Variables stay those of the first call.
/// Nests. Where no graph is recorded: fn(inputs...).
template <class F, class... In>
auto recompute(const F& fn, const In&... inputs) {
  // Within another one that keeps nothing there is nothing to drop.
  if (!mode().grad || mode().recording != nullptr) return fn(inputs...);
  const detail::Recording recording(
      [fn, kept = std::tuple<In...>(inputs...)]() mutable { std::apply(fn, kept); });
  return fn(inputs...);
}

/// While alive, run_blocks() goes by a policy. `blocks_run`, where given, takes the number of
/// blocks that ran so.
struct RecomputeBlocks : ModeGuard {
  explicit RecomputeBlocks(RecomputePolicy policy, int64_t* blocks_run = nullptr) {
    mode().recompute = policy;
    mode().blocks_run = blocks_run;
  }
};

/// "none", "blocks" or "sqrt"; an error for another name.
RecomputePolicy recompute_policy(std::string_view name);

/// How many blocks one recomputation takes: 1, or for sqrt ceil(sqrt(n)), the last group being what
/// is left.
size_t blocks_of_group(RecomputePolicy policy, size_t n);

/// What the n repeated blocks of a model make of x in turn, by the thread's policy: f(i, x) runs
/// block i, and returns what f(i + 1, x) takes. f is copied, and what holds for recompute()'s fn
/// holds for it.
template <class X, class F>
X run_blocks(size_t n, X x, const F& f) {
  const RecomputePolicy policy = mode().recompute;
  if (policy == RecomputePolicy::none || !mode().grad) {
    for (size_t i = 0; i < n; ++i) x = f(i, std::move(x));
    return x;
  }
  if (mode().blocks_run != nullptr) *mode().blocks_run += static_cast<int64_t>(n);
  const size_t group = blocks_of_group(policy, n);
  for (size_t begin = 0; begin < n; begin += group) {
    const size_t end = std::min(begin + group, n);
    x = recompute(
        [f, begin, end](X y) {
          for (size_t i = begin; i < end; ++i) y = f(i, std::move(y));
          return y;
        },
        x);
  }
  return x;
}

/// The same of modules that are called with a Variable; they must live until backward.
template <class Blocks>
Variable run_blocks(const Blocks& blocks, Variable x) {
  return run_blocks(blocks.size(), std::move(x),
                    [&blocks](size_t i, const Variable& y) { return blocks[i](y); });
}

}  // namespace lathe
