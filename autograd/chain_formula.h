// Defines formulas of elementwise ops and ops on rows. A formula is a forward pass that fused() or
// deferred() has recorded, or the backward pass that is derived from it. A formula runs as a chain,
// block by block: all ops run on a block before they run on the next block (core/kernels/chain.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/kernels/chain.h"

namespace lathe {

/// A value of a formula: an input, or the result of an op of earlier values.
struct ChainValue {
  ChainOp op = ChainOp::input;
  std::array<int, 3> from{-1, -1, -1};
  double number = 0;
  at::ScalarType dtype = at::kFloat;  ///< float32, bfloat16, or bool for a mask
  bool needs_grad = false;            ///< whether a gradient flows to the value
  bool per_row = false;               ///< whether the value has one element per row
  int input = -1;                     ///< index of the input; -1 for the result of an op
};

/// A use of an input of the formula: operand `operand` of value `value` is input `input`.
struct ChainUse {
  int input = 0;
  int value = 0, operand = 0;
  int gradient = -1;  ///< index of the value that is this use's gradient; -1: not needed
};

/// A formula: a list of values in the order in which they are computed. A value has the formula's
/// shape or one element per row; a row lies along the last dim.
class ChainFormula {
 public:
  /// Adds an input and returns the index of its value.
  int add_input(at::ScalarType dtype, bool needs_grad, bool per_row = false);
  /// Adds an op on value a and, unless b is -1, on value b. Returns the index of its result, which
  /// has the dtype and shape that ATen would give it. `number` is the scalar operand of an op that
  /// has one. Operands of row_sum and row_mean must be float32 and have the formula's shape.
  int add(ChainOp op, int a, int b = -1, double number = 0);
  /// Adds a select and returns the index of its result: b where the mask is true, and c elsewhere.
  /// b and c must have the same dtype.
  int add_select(int mask, int b, int c);
  /// Adds a cast of a to `dtype` and returns the index of the result. Returns a if a has that dtype
  /// already.
  int add_cast(int a, at::ScalarType dtype);

  /// Adds the op of `value`, applied to the operands `from`, which must have the same dtypes and
  /// shapes as the operands of `value`. Returns the index of its result.
  int add_like(const ChainValue& value, const std::array<int, 3>& from);

  /// Adds the backward pass from the gradient `dy` of `result`, with the same operations in the
  /// same order as if the engine ran it op by op. Returns one entry for each use of an input that
  /// needs a gradient, in the order in which the engine would add these gradients: the last use
  /// first. A gradient has the formula's shape, or one element per row if its input has one element
  /// per row. As an exception, a bfloat16 gradient of such an input may still have the formula's
  /// shape; the engine then sums the rows. The dtype of a gradient may differ from the dtype of its
  /// input.
  std::vector<ChainUse> add_backward(int result, int dy);

  /// Turns the result of an op into a new input of the formula, so that the caller supplies the
  /// value instead of the formula computing it. Changes nothing and returns false if no value in
  /// `wanted` depends on it.
  bool make_input(int value, const std::vector<int>& wanted);

  /// Returns for each input whether a value in `wanted` depends on it.
  std::vector<bool> inputs_of(const std::vector<int>& wanted) const;

  /// Returns the shape of a value, given the shape of the formula.
  std::vector<int64_t> sizes_of(int value, at::IntArrayRef sizes) const;

  const std::vector<ChainValue>& values() const { return values_; }
  const ChainValue& operator[](int value) const { return values_[static_cast<size_t>(value)]; }

  /// Computes the values in `wanted` as one chain on the CPU. They must be distinct and must not be
  /// inputs. `layouts` and `tensors` have one entry for each input; `sizes` is the shape of the
  /// formula. Results are contiguous.
  std::vector<at::Tensor> run(const std::vector<int>& wanted,
                              const std::vector<Chain::Input>& layouts,
                              std::span<const at::Tensor> tensors, at::IntArrayRef sizes) const;
  /// Computes the values in `wanted` op by op, for inputs of any layout.
  std::vector<at::Tensor> run_by_aten(const std::vector<int>& wanted,
                                      std::span<const at::Tensor> tensors,
                                      at::IntArrayRef sizes) const;

 private:
  int push(const ChainValue& value);
  bool is_per_row(const std::array<int, 3>& from) const;
  int add_gradient(int gradient, const ChainValue& operand);
  std::vector<bool> dependencies_of(const std::vector<int>& wanted) const;
  std::array<int, 3> gradients_of(const ChainValue& value, int y, int dy);

  std::vector<ChainValue> values_;
  int inputs_ = 0;
};

/// Returns the shape of values that have one element per row: `sizes` with a last dim of 1.
std::vector<int64_t> per_row_sizes(at::IntArrayRef sizes);

}  // namespace lathe
