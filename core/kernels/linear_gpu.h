// Describes linear layers on a GPU: matrix products with their epilogues, and the shapes for which
// kernels sum columns.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// The alignment in bytes that LinearProduct::bias and LinearProduct::before require.
constexpr int64_t product_vector_alignment = 256;

/// A matrix product y = x W^T + bias + residual, or y = gelu(u) in the tanh form, where u = x W^T +
/// bias. Rows have no gaps between them. All pointers are device pointers aligned to 16 bytes;
/// `bias` and `before` are aligned to product_vector_alignment.
struct LinearProduct {
  int64_t rows = 0, in = 0, out = 0;
  Element type = Element::bf16;    ///< type of x and W: bfloat16 or float16
  Element y_type = Element::bf16;  ///< type of y, bias and residual: `type` or float32
  const void* x = nullptr;         ///< [rows, in]
  const void* weight = nullptr;    ///< [out, in]
  const void* bias = nullptr;      ///< [out]; null: no bias
  const void* residual = nullptr;  ///< [rows, out]; null: no residual
  void* y = nullptr;               ///< [rows, out]
  void* before = nullptr;          ///< receives u [rows, out] in `type`; null: y is not gelu(u)
};

/// Returns whether column_sums_cuda() (core/kernels/linear.cuh) supports this number of columns.
inline bool column_sums_on_gpu(int64_t columns) { return columns > 0 && columns % 8 == 0; }
/// The number of rows that one block of threads sums.
constexpr int64_t column_sum_rows = 128;
/// Returns the number of floats of scratch memory that column_sums_cuda() needs.
inline int64_t column_sum_scratch(int64_t rows, int64_t columns) {
  return (rows + column_sum_rows - 1) / column_sum_rows * columns;
}

}  // namespace lathe
