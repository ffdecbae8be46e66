// Lists the ops of a training step in the order in which they run, with their tensors and their
// cost.
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

/// The forward pass of an op, or the backward pass of its node.
struct StepOp {
  Span::Phase phase = Span::Phase::forward;
  std::string op{};
  /// Path of the module in which the op ran; empty outside of all modules.
  std::string module{};
  /// Dtypes and sizes, such as "float32[2,3]"; for a backward pass, dtypes and sizes of the
  /// incoming gradients.
  std::vector<std::string> inputs{};
  /// For a backward pass, the saved tensors that it read; otherwise empty.
  std::vector<std::string> saved{};
  std::vector<std::string> outputs{};  ///< for a backward pass, the gradients that it computed
  /// Bytes of the tensors that the op reads and writes, each tensor counted once. An op that
  /// returns a view reads and writes nothing.
  int64_t read = 0, written = 0;
  Flops flops{};
  bool allocates = false;  ///< whether some output does not share the memory of an input
  bool elementwise = false;
};

/// Lists the ops and backward passes of the current thread until destroyed.
class OpList {
 public:
  OpList();
  const std::vector<StepOp>& ops() const { return ops_; }

 private:
  void add_result(const OpResult& result);
  void add_backward(const BackwardResult& result);

  std::vector<StepOp> ops_;
  FlopCount flops_{};  // FLOPs of the op that is running
  std::vector<at::Tensor> saved_;
  std::unordered_map<const Node*, std::string> modules_;
  const ObserveOps observe_;
};

/// The ops of a step.
struct StepOps {
  int64_t step = 0;
  std::vector<StepOp> ops{};  ///< unfused ops, because ops are not fused while they are observed
  /// Fused ops in the forward passes of the next step, which is not observed.
  FusionCount fusion{};
};

/// Runs the steps before `step` unobserved, then runs `step` and returns its ops. The session
/// changes as in training.
StepOps list_step_ops(Session& session, const Data& data, int64_t step);

/// Returns a text with a line for each op and a summary. The summary has counts and bytes by op
/// name, the share of elementwise ops in all bytes, and the number of ops that are fused.
std::string op_list_text(const StepOps& step);

}  // namespace lathe
