// Declares the kinds of optimizers. An optimizer that updates each element independently is a rule
// (core/kernels/rules/rule.h): it needs a file in core/kernels/rules/ and a line in
// core/kernels/rules.h, and no code in optim/. An optimizer that needs whole tensors is a Method:
// it needs a file in optim/methods/ and a line in the table of optim/methods.cc or, in your own
// program, a call of add_optimizer_kind.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "autograd/tensor_cut.h"
#include "core/kernels/update.h"
#include "optim/config.h"

namespace lathe {

/// A tensor of a parameter's state.
struct StateTensor {
  std::string name;
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  int place = 0;     ///< index in UpdateArgs::state
  double start = 0;  ///< initial value of all elements
  int64_t per = 1;   ///< number of the parameter's elements for each element of this tensor, if
                     ///< the state is divisible
};
/// The state that a method keeps for one parameter.
struct MethodState {
  std::vector<StateTensor> tensors;
  bool whole = false;  ///< whether update() handles the tensor as a whole; false: the method's rule
                       ///< updates each element
  double flops = 0;    ///< FLOPs of an update's matrix products
  /// Whether updating parts of the parameter, which are cut at multiples of grad_sum_chunk, is
  /// bitwise equal to updating the complete parameter. If so, processes can divide the parameter
  /// among themselves. Otherwise one process updates all of it.
  bool divisible = false;
  /// Whether update() itself joins the parts of a parameter that is cut among tensor ranks
  /// (SlotUpdate::join), if the update needs the complete parameter.
  bool joins_parts = false;
};

/// Returns whether a parameter of these sizes can't be updated while it is cut among tensor ranks.
/// `kind` is the optimizer (optim.kind), which keeps `state` for the parameter.
bool needs_whole_tensors(const MethodState& state, at::IntArrayRef sizes, const std::string& kind);

/// Returns the complete tensor; each tensor rank passes its part. The call is a collective of the
/// tensor ranks.
using JoinParts = std::function<at::Tensor(const at::Tensor& part, const TensorCut& cut)>;

/// One parameter of a step: the kernels' arguments and the parameter's shape.
struct SlotUpdate {
  UpdateArgs args;
  at::IntArrayRef sizes;
  bool whole = false;
  size_t parameter = 0;  ///< index in the optimizer's parameters
  /// How the parameter is cut among tensor ranks; null: not cut. If it is cut, `sizes` are the
  /// sizes of this rank's part, and all tensor ranks update the same parameters in the same order.
  const TensorCut* cut = nullptr;
  const JoinParts* join = nullptr;  ///< can be called if `cut` is not null
};

/// Updates parameters. A method has no state besides the state of the slots.
class Method {
 public:
  virtual ~Method() = default;
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;

  /// Returns which state the method keeps for a parameter. Allocates nothing.
  virtual MethodState state(const NamedParameter& parameter) const = 0;
  /// Returns the rule for the step's decision and for parameters that are updated element by
  /// element. The step sets the rule's lr.
  virtual UpdateRule rule() const = 0;
  /// Updates the parameters of `slots`, and may change `slots`. One call normally has all
  /// parameters of a step. If parameters are updated in backward, or the state is in a file, there
  /// are several calls, each with some of the parameters or with parts of divisible parameters. On
  /// a CPU, update() is not called for a skipped step. On a GPU, only `control` shows whether the
  /// step is skipped.
  virtual void update(std::vector<SlotUpdate>& slots, const UpdateRule& rule, StepControl* control,
                      bool cuda) const = 0;
  /// Returns whether the method has code for GPUs.
  virtual bool runs_on_gpu() const { return false; }

 protected:
  Method() = default;
};

/// A line of the table: a value of optim.kind, and how to make its method.
struct OptimizerKind {
  std::string name, doc;
  std::unique_ptr<Method> (*make)(const OptimConfig& config);
  /// Whether the kind may read any key of [optim]; true for kinds that are added.
  bool reads_any_key = false;
};
/// Returns all kinds: the kinds that are rules, Lathe's other kinds, and the kinds that were added.
const std::vector<OptimizerKind>& optimizer_kinds();
/// Adds a kind. Call this function before the command line is run and before an OptimConfig is
/// made. Throws Exit::internal if the name is taken.
void add_optimizer_kind(OptimizerKind kind);
/// Returns the method of a config's kind. Throws Exit::usage if there is no such kind.
std::unique_ptr<Method> make_method(const OptimConfig& config);

/// Returns the dtype of state and arithmetic: float64 for float64 parameters, otherwise float32.
at::ScalarType state_dtype(const at::Tensor& parameter);
/// Updates elements by the rule's formula, on the device of `slots`, on all threads.
void update_elements(const std::vector<SlotUpdate>& slots, const UpdateRule& rule,
                     StepControl* control, bool cuda);
/// Returns the state that a rule keeps for a parameter.
MethodState state_of_rule(const UpdateRule& rule, const at::Tensor& parameter);

}  // namespace lathe
