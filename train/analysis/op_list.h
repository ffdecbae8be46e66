// The ops of a training step in the order in which they run, with their tensors and their cost.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/deferred.h"
#include "autograd/observer.h"
#include "core/flops.h"
#include "train/analysis/profile.h"
#include "train/session/session.h"

namespace lathe {

/// An op's forward pass, or the backward pass of its node.
struct StepOp {
  Span::Phase phase = Span::Phase::forward;
  std::string op{};
  std::string module{};                ///< the path of the module that it ran in; "" outside of all
  std::vector<std::string> inputs{};   ///< "float32[2,3]"; of a backward pass, incoming gradients
  std::vector<std::string> saved{};    ///< of a backward pass, the saved tensors that it read
  std::vector<std::string> outputs{};  ///< of a backward pass, the gradients that it computed
  /// Bytes of the tensors that the op reads and writes, each tensor counted once. An op that
  /// returns a view reads and writes nothing.
  int64_t read = 0, written = 0;
  Flops flops{};
  bool allocates = false;  ///< some output is not in the memory of an input
  bool elementwise = false;
};

/// While alive, lists the ops and backward passes of this thread.
class OpList {
 public:
  OpList();
  const std::vector<StepOp>& ops() const { return ops_; }

 private:
  void add_result(const OpResult& result);
  void add_backward(const BackwardResult& result);

  std::vector<StepOp> ops_;
  FlopCount flops_{};  // of the op that is running
  std::vector<at::Tensor> saved_;
  std::unordered_map<const Node*, std::string> modules_;
  const ObserveOps observe_;
};

/// The ops of a step.
struct StepOps {
  int64_t step = 0;
  std::vector<StepOp> ops{};  ///< single ops, because observed ops are not fused
  FusionCount fusion{};       ///< of the forward passes of the next step, which is not observed
};

/// Runs steps from 0 up to `step` unobserved, and returns the ops of that step. The session changes
/// as in training.
StepOps list_step_ops(Session& session, const Data& data, int64_t step);

/// Returns a line for each op, and a summary: counts and bytes by op name, the share of elementwise
/// ops in all bytes, and the number of ops that are fused.
std::string op_list_text(const StepOps& step);

}  // namespace lathe
