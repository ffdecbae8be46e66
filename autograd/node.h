// Defines the nodes of the autograd graph. A node knows the shapes and dtypes of its outputs, and
// where the gradients of its inputs go.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "autograd/precision.h"
#include "autograd/variable.h"
#include "core/flops.h"

namespace lathe {

class Recomputation;
class Saved;
struct TensorCut;
/// A function that inspects or changes a tensor that an op keeps (op.h).
using SavedVisit = std::function<void(Saved&)>;

/// One gradient per input (or output); undefined where none flows.
template <class T>
using GradList = c10::SmallVector<T, 4>;
/// For each input of a node, whether it needs a gradient.
using NeedsList = c10::SmallVector<bool, 4>;

struct Node;

/// A gradient on its way through a backward pass.
struct GradSlot {
  at::Tensor grad;    ///< the sum of the contributions so far; undefined if none
  bool seen = false;  ///< whether a hook, an observer or the caller of grad() has received the
                      ///< gradient and may have kept it

  /// Returns whether `grad` may be added to in place: nothing else holds the tensor or its memory,
  /// and it is contiguous. Ops may return one tensor as several gradients, or a view of a saved
  /// tensor; such a gradient is not owned.
  bool owned() const;
};

/// The gradients that the inputs of a running node have so far. An op whose kernel can accumulate
/// into a tensor, such as a linear layer, adds its own contribution to these gradients directly.
class GradSlots {
 public:
  virtual ~GradSlots() = default;
  /// Hands over the gradient that input i has so far. The op adds its contribution in place and
  /// returns the tensor as the gradient of input i. Returns an undefined tensor if there is no
  /// gradient of that dtype yet, if the gradient is not owned, or if a hook, an observer or grad()
  /// must receive the gradients of this pass separately. If the op throws, the gradient is lost: do
  /// not use gradients after a backward pass that failed.
  /// The op must add one number to each element and round once. A float32 tensor may hold the
  /// gradient that earlier passes left in a parameter. Its sum must be bitwise equal to the sum of
  /// a separate addition, because otherwise the bits of a step's gradients would depend on which
  /// micro-batches a process computes (core/tree_sum.h). A tensor of lower precision only holds
  /// gradients of this pass, and its sum is more exact than that of a separate addition, which
  /// rounds twice.
  virtual at::Tensor take(size_t i, at::ScalarType dtype) = 0;
  /// Returns whether input i takes gradients of this dtype without a cast and has none so far in
  /// this pass. An op that has several gradients for the input may then return their sum, added in
  /// the engine's order.
  virtual bool is_first(size_t i, at::ScalarType dtype) = 0;
  /// Returns whether the op's saved tensors are freed after this pass. An op may then write its
  /// results into a tensor that it made itself and that nothing else holds.
  virtual bool frees_saved() const = 0;
};

/// A step of a recorded forward pass: the op that made the outputs, and where the gradients of its
/// inputs go. A node is owned by the Variables that its op made and by the nodes that use these
/// Variables.
struct Node : std::enable_shared_from_this<Node> {
  /// Receives the gradient of an output. A defined result, of the same shape and dtype, replaces
  /// the gradient.
  using Hook = std::function<at::Tensor(const at::Tensor&)>;

  explicit Node(std::span<const at::Tensor> outputs_);
  /// Destroys a graph of any depth without recursion, even if hooks hold parts of the graph.
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Returns the name of the op or parameter, for messages.
  virtual std::string name() const = 0;
  /// Returns whether `tensors` have the shapes and dtypes of this node's outputs.
  bool fits(std::span<const at::Tensor> tensors) const;
  /// Returns the gradients of the inputs that `needs` marks, from the gradients `dy` of the
  /// outputs, at least one of which is defined.
  virtual GradList<at::Tensor> backward(const GradList<at::Tensor>& dy, const NeedsList& needs,
                                        GradSlots& slots) = 0;
  /// Computes the same gradients and records a graph of the computation, for second derivatives.
  virtual GradList<Variable> backward(const GradList<Variable>& dy, const NeedsList& needs) = 0;
  /// Frees the tensors that were saved for backward.
  virtual void release() {}
  /// Frees the op and its saved tensors, which the recomputation `recomputed` can restore.
  virtual void drop_saved() {}
  /// Returns whether the op can compute its result from the tensors that it saved other than its
  /// inputs (see result() in op.h).
  virtual bool can_rebuild_result() const { return false; }
  /// Calls `visit` with each tensor that the op keeps. `visit` may change the tensor.
  virtual void visit_saved(const SavedVisit&) {}
  /// Returns this node if it is a leaf, else null.
  virtual Leaf* as_leaf() { return nullptr; }
  const Leaf* as_leaf() const { return const_cast<Node*>(this)->as_leaf(); }

  /// The shape, dtype and device that a gradient of an output must have.
  struct Output {
    c10::SmallVector<int64_t, 5> sizes;
    at::ScalarType dtype;
    at::Device device;
    std::vector<std::shared_ptr<Hook>> hooks;
  };
  c10::SmallVector<Output, 1> outputs;
  c10::SmallVector<Edge, 4> next;  ///< where each input's gradient goes; an edge without a node
                                   ///< drops the gradient
  bool frozen = false;             ///< whether this is a leaf that currently takes no gradient
  bool packed = false;             ///< whether the op keeps packed tensors (autograd/packing.h)
  /// The node that stands for this node in the graph: this node itself, or the node of a deferred
  /// op (autograd/deferred.h), which then owns this node.
  Node* in_graph = this;
  const uint64_t sequence;  ///< order of creation: consumers come after producers
  Flops backward_flops;     ///< FLOPs of backward if every input that needs a gradient gets one
  std::shared_ptr<Recomputation> recomputed;  ///< the part of the graph that must run again before
                                              ///< backward; null if the op keeps its tensors
};

/// A parameter's leaf node; holds its gradient.
struct Leaf final : Node {
  Leaf(const at::Tensor& data, std::string name_)
      : Node({&data, 1}), label(std::move(name_)), precision(data.scalar_type()) {}
  ~Leaf() override;

  std::string name() const override { return label.empty() ? "leaf" : label; }
  GradList<at::Tensor> backward(const GradList<at::Tensor>&, const NeedsList&,
                                GradSlots&) override {
    return {};
  }
  GradList<Variable> backward(const GradList<Variable>&, const NeedsList&) override { return {}; }
  Leaf* as_leaf() override { return this; }
  /// Adds to `grad` unless the parameter is frozen. Stores the first gradient without a copy if it
  /// is owned, and adds later gradients in place. Passes on several threads may call this function
  /// at the same time.
  void accumulate(GradSlot slot);
  /// Moves `grad` out if nothing else holds it or its memory; otherwise returns an undefined
  /// tensor.
  at::Tensor take_grad();

  std::string label;
  at::Tensor grad;
  Precision precision;
  std::shared_ptr<const TensorCut> cut;  ///< null: the parameter is not cut
  /// Whether checkpoints contain the parameter. False for the frozen weights under adapters, which
  /// stay in the checkpoint that they came from.
  bool is_saved = true;
  /// The shard of a parameter that this process keeps (dist/parameter_shards.h): consecutive
  /// elements, 1-D, and the index after the last element. The parameter's tensor then has memory
  /// only while it is used. If `elements` is undefined, the parameter is not sharded.
  struct OwnElements {
    at::Tensor elements;
    int64_t end = 0;
  } own{};
  /// Hooks that are called when a gradient has been added.
  std::vector<std::shared_ptr<std::function<void(Leaf&)>>> after_accumulate;

 private:
  std::mutex mutex_;  // guards `grad` against other passes
};

namespace detail {

/// The state of an op that a recomputation kept, so that the op does not run again.
struct KeptOp {
  std::shared_ptr<Node> node;       ///< null: the op was not kept
  std::vector<at::Tensor> outputs;  ///< results of the first run; empty: the op rebuilds them
};

}  // namespace detail

/// Returns the precision state of a parameter; null for a Variable that is not a parameter.
inline const Precision* precision_of(const Variable& v) {
  const Leaf* leaf = v.as_leaf();
  return leaf == nullptr ? nullptr : &leaf->precision;
}

/// Returns whether `v` is a parameter that an optimizer updates.
inline bool is_trained(const Variable& v) {
  const Precision* p = precision_of(v);
  return p != nullptr && p->quantized == nullptr && v.requires_grad();
}

}  // namespace lathe
