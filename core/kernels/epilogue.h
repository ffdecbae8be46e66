// Operations on a block of a matmul's result while the block is still in the nearest cache.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"
#include "core/kernels/pack.h"

namespace lathe {

/// gelu: the tanh form; swiglu: silu(gate) times the activation's argument.
enum class Activation : int32_t { none, gelu, swiglu };

/// The operations out = activation(product + bias) + residual. `before` receives the activation's
/// argument. All matrices are [m, n], row-major, in float32, bfloat16 or float16, and null if
/// absent.
struct Epilogue {
  Matrix out;                   ///< written
  const float* bias = nullptr;  ///< [n]
  Activation activation = Activation::none;
  Matrix before = {};    ///< written; has out's type
  Matrix gate = {};      ///< for swiglu; has out's type
  Matrix residual = {};  ///< may be `out` itself, to add to it
};

/// Applies `e` to a float32 block of `rows` x `columns` elements, whose rows are `stride` apart and
/// whose first element is at (row, column) of the result.
void finish_block(const float* block, int64_t stride, int64_t row, int64_t column, int64_t rows,
                  int64_t columns, const Epilogue& e);

/// Adds the sums of the rows of a [rows, columns] to `sums` [rows].
void add_row_sums(Matrix a, int64_t rows, int64_t columns, float* sums);

}  // namespace lathe
