// Records ops without running them: the ops of a function that is given to fused(), or ops that
// DeferOps runs later.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/chain_formula.h"
#include "autograd/chain_op.h"
#include "autograd/op.h"
#include "autograd/variable.h"

namespace lathe {

/// Thrown to end a recording that can't become a chain; the ops then run one by one. It is not a
/// std::exception, so that the recorded function does not catch it by mistake.
struct ChainAbandoned {};

namespace detail {

/// Throws ChainAbandoned.
[[noreturn]] void abandon_chain();
/// Records a comparison and returns a placeholder for its mask. Returns an undefined tensor if
/// neither operand is a value of the chain that is being recorded.
at::Tensor compare_in_chain(Comparison op, const Operand& a, const Operand& b);

}  // namespace detail

/// Records, as a formula, the ops that a function runs on given inputs. During the recording
/// (Mode::chain), ops return placeholder tensors without memory. Throws ChainAbandoned for anything
/// that a chain can't contain: ops that are neither elementwise nor ops on rows (needs_rows()),
/// results that do not have the common shape of the inputs, values of other dtypes than float32,
/// bfloat16 and (for masks) bool, inputs that are not contiguous CPU tensors, and changes in place.
/// As an exception to the common shape, sums and means of rows have a last dim of 1, and so do the
/// results of elementwise ops whose operands all have one element per row.
class ChainTrace {
 public:
  /// Prepares to record a function of these inputs. Throws ChainAbandoned if a chain can't have
  /// them as inputs.
  explicit ChainTrace(std::span<const Variable> inputs);
  virtual ~ChainTrace() = default;
  ChainTrace(ChainTrace&&) = default;

  /// Returns the arguments to call the function with: placeholders for the floating-point inputs
  /// that have the common shape, and the other inputs unchanged.
  const std::vector<Variable>& arguments() const { return arguments_; }
  /// Records an op, and returns its result. Returns an undefined Variable if none of the inputs was
  /// recorded in the chain; the op then runs as usual. Throws ChainAbandoned if a chain can't
  /// contain the op.
  Variable record(const ChainForm& form, const OpInfo& info, std::span<const Variable> inputs);
  /// Records a comparison; see detail::compare_in_chain.
  at::Tensor compare(ChainOp op, const detail::Operand& a, const detail::Operand& b);
  /// Returns whether v is a placeholder for a value of this chain.
  bool has(const Variable& v) const { return value_of(v.data()).has_value(); }
  /// Returns the index of the value `y` that the function returned. Throws ChainAbandoned if the
  /// chain can't compute that value, or if a value or an input was changed in place.
  int result(const Variable& y) const;

  const ChainFormula& formula() const { return formula_; }
  const std::vector<ChainInput>& inputs() const { return inputs_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  /// Returns whether the chain may contain ops on rows and values with one element per row.
  bool has_rows() const;
  /// Returns the layout of an input that has one element per row.
  Chain::Input per_row_layout() const;
  /// Returns the cost of all ops, per element of the chain.
  PerElement cost() const;

 protected:
  /// Prepares to record ops whose results have these sizes.
  explicit ChainTrace(at::IntArrayRef sizes);

  /// Adds an op whose operands are values of the chain or become inputs, and returns its result.
  /// Throws ChainAbandoned if a chain can't contain the op.
  Variable add(const ChainForm& form, const OpInfo& info, std::span<const Variable> inputs);
  /// Returns a tensor that stands for a value until it is computed.
  virtual at::Tensor stand_in(int value);
  /// Returns the Variable of a value that was just added.
  virtual Variable placeholder(int value);
  /// Returns whether v, a placeholder for `value`, still has the edge that it was created with. If
  /// not, the function has detached it from the graph.
  virtual bool is_connected(const Variable& v, int value) const;

  bool grad_;  // Mode::grad when the recording began
  ChainFormula formula_;
  std::vector<PerElement> costs_;                      // costs of the ops, per element
  std::vector<std::pair<at::Tensor, int>> stand_ins_;  // placeholders, with value indices

 private:
  bool is_per_row(const at::Tensor& t, const Chain::Input& layout) const;
  void update_row_use(ChainOp op, bool one_per_row);
  bool can_use_rows(bool calls, bool calls_per_row) const;
  bool gives_one_per_row(std::span<const Variable> inputs, const at::Tensor& mask) const;
  std::optional<int> value_of(const at::Tensor& t) const;
  void check_operands(const ChainForm& form, int a, int b, bool one_per_row) const;
  int operand(const Variable& v);
  int mask(const at::Tensor& t);
  int add_input(const Variable& v);

  std::vector<int64_t> sizes_;
  bool uses_rows_ = false;
  bool calls_ = false, calls_per_row_ = false;       // whether ops call ATen's functions
  std::shared_ptr<Node> differentiable_, constant_;  // the nodes of placeholders
  std::vector<ChainInput> inputs_;
  std::vector<Variable> arguments_;
};

}  // namespace lathe
