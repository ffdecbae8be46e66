// Layer norm (Ba, Kiros and Hinton 2016) and RMS norm (Zhang and Sennrich 2019) over rows of C
// elements, computed in float32 for every element type. Threads share the rows. Sums over all rows
// are sums of partial sums over a fixed number of rows, so results have the same bits on any number
// of threads.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// The rows of a norm, its weights, and the statistics that it saves for backward. Elements of x
/// and y are float32, bfloat16 or float16.
struct NormRows {
  int64_t rows = 0, columns = 0;
  const float* weight = nullptr;  ///< [columns] or null: ones
  const float* bias = nullptr;    ///< [columns] or null: zeros
  float* mean = nullptr;          ///< [rows]; null for RMS norm
  float* rstd = nullptr;          ///< [rows]: 1 / sqrt(variance + eps)
};

/// Returns whether the kernels of norm.cuh take rows of this length.
inline bool norm_on_gpu(int64_t columns) {
  return columns > 0 && columns % 4 == 0 && columns <= 8192;
}
/// The number of rows over which one block of GPU threads sums dweight and dbias, before the sums
/// of all blocks are added.
constexpr int64_t norm_rows_per_block = 16;
/// Returns the number of floats that norm_backward_cuda() needs for the sums of all blocks.
inline int64_t norm_sum_scratch(const NormRows& n) {
  return (n.rows + norm_rows_per_block - 1) / norm_rows_per_block * 2 * n.columns;
}

/// Computes y = (x - mean) rstd weight + bias; writes mean and rstd.
void norm_forward(const NormRows& n, Matrix x, Matrix y, float eps);
/// Writes the gradient of x to dx, or adds it to dx if `add` is true. Does neither if `dx` is
/// empty. Also writes dweight and dbias [columns] if they are not null. With g = dy weight and h =
/// (x - mean) rstd: dx = rstd (g - avg(g) - h avg(g h)), without avg(g) for RMS norm.
void norm_backward(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add, float* dweight,
                   float* dbias);

}  // namespace lathe
