// Observes ops and backward passes, for anomaly detection, profiles, layer statistics and replays.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <utility>

#include "autograd/node.h"
#include "autograd/variable.h"
#include "core/mode.h"

namespace lathe {

/// The result of an op.
struct OpResult {
  const char* name;
  std::span<const Variable> inputs;  ///< as the op received them, after autocast
  std::span<const at::Tensor> outputs;
  const Node* node;  ///< null if no graph is recorded
};

/// The gradients that a node's backward computed.
struct BackwardResult {
  const Node& node;
  const GradList<at::Tensor>& dy;     ///< gradients of the node's outputs
  const GradList<at::Tensor>& grads;  ///< gradients of the node's inputs
};

/// Functions that are called as ops and backward passes run. Each may be empty.
struct OpObserver {
  /// Called with the result of each op.
  std::function<void(const OpResult&)> on_result{};
  /// Called with each tensor, such as an index or a mask, that an op is given and keeps for
  /// backward.
  std::function<void(const at::Tensor&)> on_attribute{};
  /// Called with each saved tensor when its op reads it: in backward, and also in forward if the op
  /// reads it there, as with an index or a mask.
  std::function<void(const at::Tensor&)> on_saved{};
  /// Called in a backward pass with the complete gradient of each output of a node. The gradient is
  /// undefined if none reached that output. While an observer has this function, ops return their
  /// own contribution instead of adding it to a gradient that an input already has
  /// (GradSlots::take).
  std::function<void(const Node&, const at::Tensor&)> on_gradient{};
  /// Called with the gradients that each node's backward received and computed.
  std::function<void(const BackwardResult&)> on_backward{};
};

/// Calls an observer for the ops and backward passes of this thread until destroyed. If several
/// ObserveOps exist, their observers are all called, the innermost first. If none exists, an op
/// only compares one pointer with null.
class ObserveOps : public ModeGuard {
 public:
  explicit ObserveOps(OpObserver observer)
      : observer_(std::move(observer)), outer_(mode().observers) {
    mode().observers = this;
  }

  /// Calls one function of each of the thread's current observers. For example:
  /// `ObserveOps::notify(&OpObserver::on_attribute, tensor)`.
  template <class Function, class... Args>
  static void notify(Function OpObserver::* event, const Args&... args) {
    for (const ObserveOps* o = mode().observers; o != nullptr; o = o->outer_) {
      if (o->observer_.*event) (o->observer_.*event)(args...);
    }
  }

  /// Returns whether one of the thread's current observers has this function.
  template <class Function>
  static bool any(Function OpObserver::* event) {
    for (const ObserveOps* o = mode().observers; o != nullptr; o = o->outer_) {
      if (o->observer_.*event) return true;
    }
    return false;
  }

 private:
  const OpObserver observer_;
  const ObserveOps* const outer_;
};

}  // namespace lathe
