// Declares the op "fused", which runs a formula of elementwise ops as one op of the graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "autograd/chain_formula.h"
#include "autograd/op.h"
#include "autograd/variable.h"

namespace lathe {

/// An input of a formula.
struct ChainInput {
  Variable variable;
  Chain::Input layout;
  int value = 0;        ///< index of the input's value in the formula
  int64_t version = 0;  ///< the tensor's version when the input was added
};

/// Applies the op "fused" and returns the formula's value `result`, of shape `sizes`. `inputs` are
/// the inputs of the formula, in order. `cost` is the sum of the costs of the formula's ops, per
/// element of `sizes`.
Variable apply_chain(const ChainFormula& formula, std::span<const ChainInput> inputs, int result,
                     at::IntArrayRef sizes, PerElement cost);

/// Runs the op of `value`, which must not be a comparison, on `operands`, and returns the result.
/// `mask` is the mask of a select or a fill; other ops ignore it.
Variable run_value(const ChainValue& value, std::span<const Variable> operands,
                   const at::Tensor& mask);

}  // namespace lathe
