// Which sums of columns a GPU's kernel takes, and its scratch memory.
#pragma once

#include <cstdint>

namespace lathe {

/// Returns whether column_sums_cuda (core/kernels/linear.cuh) takes rows of so many columns.
inline bool column_sums_on_gpu(int64_t columns) { return columns > 0 && columns % 4 == 0; }
/// Rows of which one block adds up the columns.
constexpr int64_t column_sum_rows = 128;
/// Returns the floats of its scratch memory.
inline int64_t column_partials(int64_t rows, int64_t columns) {
  return (rows + column_sum_rows - 1) / column_sum_rows * columns;
}

}  // namespace lathe
