// Nodes of the graph. A node knows what its outputs look like and where the gradients of its inputs
// go.
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

/// One gradient an input (or an output); undefined where none flows.
template <class T>
using GradList = c10::SmallVector<T, 4>;
/// Which of a node's inputs need a gradient.
using NeedsList = c10::SmallVector<bool, 4>;

struct Node;

/// What a node's backward made, for who watches (Mode::observe_backward).
struct BackwardResult {
  const Node& node;
  const GradList<at::Tensor>& dy;     ///< of its outputs
  const GradList<at::Tensor>& grads;  ///< of its inputs
};

/// A gradient on its way through a backward pass.
struct GradSlot {
  at::Tensor grad;  ///< the sum of what has arrived; undefined before the first
  bool seen =
      false;  ///< a hook, an observer or the caller of grad() had it in hand, and may have kept it

  /// Whether it may be added to in place: nothing else holds the tensor or its memory, and it has
  /// the layout of a new tensor. Ops may return one tensor as several gradients, or a view of what
  /// they saved; such a one is not owned.
  bool owned() const;
};

/// The gradients that a running node's inputs have so far, for fused ops that add their own in the
/// same pass.
class GradSlots {
 public:
  virtual ~GradSlots() = default;
  /// Hands over the gradient that input i has so far: the op adds its own in place and returns the
  /// tensor as input i's gradient. Undefined where there is none of that dtype yet, where it is not
  /// owned, or where the pass's own share is asked for (hooks, observers, grad()). If the op
  /// throws, the gradient is lost: gradients are not to be used after a backward that failed.
  /// `adds_once`: the op adds one number to each element and rounds once. Only then may it get what
  /// earlier passes left in a parameter: its bits are those of an addition afterwards, so a step's
  /// bits do not depend on which micro-batches a process computes (core/tree_sum.h).
  virtual at::Tensor take(size_t i, at::ScalarType dtype, bool adds_once) = 0;
};

/// A step of a recorded forward pass: what made the outputs, and where gradients of its inputs go.
/// Owned by the Variables that it made and by the nodes after it.
struct Node : std::enable_shared_from_this<Node> {
  /// Sees the gradient of an output; a defined result of the same shape replaces it.
  using Hook = std::function<at::Tensor(const at::Tensor&)>;

  explicit Node(std::span<const at::Tensor> outputs_);
  /// Destroys a chain of any length without recursion, also where hooks hold the chain.
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// The op's or parameter's, for messages.
  virtual std::string name() const = 0;
  /// Whether tensors have the shapes and dtypes of its outputs.
  bool fits(std::span<const at::Tensor> tensors) const;
  /// Gradients of the inputs that `needs` marks, from those of the outputs, of which one at least
  /// is defined.
  virtual GradList<at::Tensor> backward(const GradList<at::Tensor>& dy, const NeedsList& needs,
                                        GradSlots& slots) = 0;
  /// The same with a graph of its own, for second derivatives.
  virtual GradList<Variable> backward(const GradList<Variable>& dy, const NeedsList& needs) = 0;
  /// Frees what was saved for backward.
  virtual void release() {}
  /// Frees the op, which `recomputed` brings back.
  virtual void forget() {}
  virtual Leaf* as_leaf() { return nullptr; }
  const Leaf* as_leaf() const { return const_cast<Node*>(this)->as_leaf(); }

  /// What a gradient of an output must look like.
  struct Output {
    c10::SmallVector<int64_t, 5> sizes;
    at::ScalarType dtype;
    at::Device device;
    std::vector<std::shared_ptr<Hook>> hooks;
  };
  c10::SmallVector<Output, 1> outputs;
  c10::SmallVector<Edge, 4> next;  ///< where each input's gradient goes; without a node: nowhere
  bool frozen = false;             ///< a leaf that takes no gradient at present
  const uint64_t sequence;         ///< order of making: consumers come after producers
  Flops backward_flops;            ///< where every input that requires a gradient gets one
  std::shared_ptr<Recomputation> recomputed;  ///< what runs again before backward can, or null
};

/// The end of the line: a parameter. Keeps the gradient.
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
  /// Adds to `grad`, unless it is frozen: the first one is taken over where it is owned, later ones
  /// are added in place. Passes on several threads may do so at once.
  void accumulate(GradSlot slot);
  /// Hands over `grad` where it is owned, as GradSlots::take does.
  at::Tensor take_grad();

  std::string label;
  at::Tensor grad;
  Precision precision;
  /// Called when a backward's gradient has been added.
  std::vector<std::shared_ptr<std::function<void(Leaf&)>>> after_accumulate;

 private:
  std::mutex mutex_;  // of grad, against other passes
};

/// What precision keeps of a parameter; null for a Variable that is none.
inline const Precision* precision_of(const Variable& v) {
  const Leaf* leaf = v.as_leaf();
  return leaf == nullptr ? nullptr : &leaf->precision;
}

/// Whether an optimizer has something to do with it.
inline bool is_trained(const Variable& v) {
  const Precision* p = precision_of(v);
  return p != nullptr && p->quantised == nullptr && v.requires_grad();
}

}  // namespace lathe
