// Kinds of optimizers. One that updates each element by itself is a rule
// (core/kernels/rules/rule.h): a file and a line there, and nothing here. One that looks at whole
// tensors is a Method: a file in optim/methods/ and a line in the table of optim/methods.cc, or, in
// a program of your own, a call of add_optimizer_kind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "core/kernels/update.h"
#include "optim/config.h"

namespace lathe {

/// A tensor of a parameter's state.
struct StateTensor {
  std::string name;
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  int place = 0;  ///< in UpdateArgs::state
  double start = 0;
};
/// What a method keeps of one parameter.
struct StateOf {
  std::vector<StateTensor> tensors;
  bool whole = false;  ///< updated as a whole; otherwise its elements by the method's rule
  double flops = 0;    ///< of an update's matrix products
};

/// One parameter of a step: what kernels are given, and the shape that it has.
struct SlotUpdate {
  UpdateArgs args;
  at::IntArrayRef sizes;
  bool whole = false;
};

/// How a kind of optimizer updates parameters; it has no state but the slots'.
class Method {
 public:
  virtual ~Method() = default;
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;

  /// What it keeps of a parameter; nothing is made yet.
  virtual StateOf state(const NamedParameter& parameter) const = 0;
  /// The rule of the step's decision and of elements; its lr is the step's.
  virtual UpdateRule rule() const = 0;
  /// Updates all parameters of a step that is not skipped; on a GPU, of one that may be: `control`
  /// tells there. It may change the slots.
  virtual void update(std::vector<SlotUpdate>& slots, const UpdateRule& rule, StepControl* control,
                      bool cuda) const = 0;
  /// Whether it has code for GPUs.
  virtual bool runs_on_card() const { return false; }

 protected:
  Method() = default;
};

/// A line of the table: what optim.kind says, and the method that it stands for.
struct OptimizerKind {
  std::string name, doc;
  std::unique_ptr<Method> (*make)(const OptimConfig& config);
};
/// All kinds: those of the rules, Lathe's others, and those that were added.
const std::vector<OptimizerKind>& optimizer_kinds();
/// Adds a kind, before the command line is run or an OptimConfig is made. Exit::internal where its
/// name is taken.
void add_optimizer_kind(OptimizerKind kind);
/// The method that a config asks for.
std::unique_ptr<Method> make_method(const OptimConfig& config);

/// float64 for float64 parameters, else float32: what state and arithmetic are in.
at::ScalarType state_dtype(const at::Tensor& parameter);
/// Updates elements by the rule's formula, on the device of `slots`, on all threads.
void update_elements(const std::vector<SlotUpdate>& slots, const UpdateRule& rule,
                     StepControl* control, bool cuda);
/// The state of a rule's parameter.
StateOf state_of_rule(const UpdateRule& rule, const at::Tensor& parameter);

}  // namespace lathe
