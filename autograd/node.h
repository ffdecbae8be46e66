// Nodes of the graph. A node knows what its output looks like and where the gradients of its inputs go.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "core/flops.h"

namespace lathe {

struct Fp8Scaling;
class QuantisedTensor;

/// One gradient an input; undefined where none flows.
template <class T>
using GradList = c10::SmallVector<T, 4>;

struct Node : std::enable_shared_from_this<Node> {
  explicit Node(const at::Tensor& output);
  /// Destroys a chain of any length without recursion.
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual std::string name() const = 0;
  /// Gradients of the inputs from that of the output. The Variable form records a graph of its own.
  virtual GradList<at::Tensor> backward(const at::Tensor& dy) = 0;
  virtual GradList<Variable> backward(const Variable& dy) = 0;
  /// Frees what was saved for backward.
  virtual void release() {}

  c10::SmallVector<std::shared_ptr<Node>, 4> next;  ///< where each input's gradient goes; null: nowhere
  const uint64_t sequence;                          ///< order of making: consumers come after producers
  c10::SmallVector<int64_t, 5> sizes;               ///< of the output
  at::ScalarType dtype;
  at::Device device;
  const void* output;  ///< identity of the output's tensor, never read through
  Flops backward_flops;
  std::vector<std::function<at::Tensor(const at::Tensor&)>> hooks;
};

/// The end of the line: a parameter. Keeps the gradient.
struct Leaf final : Node {
  Leaf(const at::Tensor& data, std::string name_)
      : Node(data), label(std::move(name_)), grad_dtype(data.scalar_type()) {}

  std::string name() const override { return label.empty() ? "leaf" : label; }
  GradList<at::Tensor> backward(const at::Tensor&) override { return {}; }
  GradList<Variable> backward(const Variable&) override { return {}; }
  /// Adds dy to `grad`: the first one is taken over where nothing else holds it, later ones are added in place.
  void accumulate(at::Tensor dy);

  std::string label;
  at::Tensor grad;
  at::Tensor low;  ///< the low-precision working copy that ops read under autocast; written by the optimizer step
  at::ScalarType grad_dtype;
  std::shared_ptr<const QuantisedTensor> quantised;  ///< frozen values of a linear layer's weight, whose tensor is a
                                                     ///< shape alone; else null
  std::shared_ptr<const Fp8Scaling> fp8;             ///< of a linear layer that computes in fp8, else null
  std::vector<std::function<void(Leaf&)>> after_accumulate;  ///< called when a backward's gradient has been added
};

/// Whether an optimizer has something to do with it.
inline bool is_trained(const Variable& v) {
  const auto* leaf = dynamic_cast<const Leaf*>(v.node().get());
  return leaf != nullptr && leaf->quantised == nullptr;
}

/// The node whose backward runs on this thread, or null.
Node*& running_node();

/// For a fused op's backward: the gradient that input i of the running node has so far, if it has that dtype and the op
/// may add its own to it in place; the op then returns that tensor as the input's gradient. Undefined where there is
/// none yet, where something else holds it, or where the pass's own share is asked for (hooks, observers). If the op
/// throws, the gradient is lost: gradients are not to be used after a backward that failed.
at::Tensor take_pending(size_t i, at::ScalarType dtype);

}  // namespace lathe
