// What is done to a block of a product while it is still in the nearest cache.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"
#include "core/kernels/pack.h"

namespace lathe {

/// gelu: the tanh form; swiglu: silu of `gate` times its argument.
enum class Activation : int32_t { none, gelu, swiglu };

/// out = activation(product + bias) + residual; `before` takes activation's argument. All [m, n]
/// row-major; null where there is none. float32 or bfloat16.
struct Epilogue {
  Matrix out;                   ///< written, as its type says
  const float* bias = nullptr;  ///< [n]
  Activation activation = Activation::none;
  Matrix before = {};    ///< written, of out's type
  Matrix gate = {};      ///< of out's type, for swiglu
  Matrix residual = {};  ///< may be `out` itself: adds to it
};

/// Does it to `rows` x `columns` elements of float32, rows `stride` apart, whose place in the
/// result is (row, column).
void finish_block(const float* block, int64_t stride, int64_t row, int64_t column, int64_t rows,
                  int64_t columns, const Epilogue& e);

/// Sums of each row of a [rows, columns], added to `sums` [rows].
void add_row_sums(Matrix a, int64_t rows, int64_t columns, float* sums);

}  // namespace lathe
