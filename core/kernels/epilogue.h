// Declares the epilogue of a matmul: operations on a block of the result while the block is still
// in the nearest cache.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"
#include "core/kernels/pack.h"

namespace lathe {

/// The activation functions of an epilogue. `gelu` is the tanh form of GELU; `swiglu` is silu(gate)
/// times the argument.
enum class Activation : int32_t { none, gelu, swiglu };

/// The operations out = activation(product + bias) + residual. `before` receives the activation's
/// argument. All matrices are [m, n], row-major, in float32, bfloat16 or float16. The pointers of a
/// bias and of matrices that the epilogue does not use are null.
struct Epilogue {
  Matrix out;                   ///< the result
  const float* bias = nullptr;  ///< [n]
  Activation activation = Activation::none;
  Matrix before = {};    ///< receives the activation's argument; has the type of `out`
  Matrix gate = {};      ///< argument of silu in swiglu; has the type of `out`
  Matrix residual = {};  ///< added last; may be `out` itself, so that the result is added to `out`
};

/// Applies `e` to a float32 block of `rows` x `columns` elements. The block's rows are `stride`
/// elements apart, and its first element is at (row, column) of the result.
void finish_block(const float* block, int64_t stride, int64_t row, int64_t column, int64_t rows,
                  int64_t columns, const Epilogue& e);

/// Adds the sum of each row of the matrix `a` [rows, columns] to `sums` [rows].
void add_row_sums(Matrix a, int64_t rows, int64_t columns, float* sums);

}  // namespace lathe
