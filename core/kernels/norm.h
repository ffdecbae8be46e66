// Declares layer norm (Ba, Kiros and Hinton 2016) and RMS norm (Zhang and Sennrich 2019) over rows,
// computed in float32 for every element type. The rows are divided among threads. Sums over all
// rows are computed from partial sums over a fixed number of rows, so results on different numbers
// of threads are bitwise equal.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// The number and length of a norm's rows, the norm's weights, and the statistics that the forward
/// pass saves for the backward pass. Elements of x and y are float32, bfloat16 or float16.
struct NormRows {
  int64_t rows = 0, columns = 0;
  const float* weight = nullptr;  ///< [columns]; null: ones
  const float* bias = nullptr;    ///< [columns]; null: zeros
  float* mean = nullptr;          ///< [rows]; null for RMS norm
  float* rstd = nullptr;          ///< [rows], 1 / sqrt(variance + eps)
};

/// Returns whether the kernels of norm.cuh support rows with this number of elements.
inline bool norm_on_gpu(int64_t columns) {
  return columns > 0 && columns % 4 == 0 && columns <= 8192;
}
/// The number of rows over which a block of GPU threads sums dweight and dbias. The sums of all
/// blocks are then added.
constexpr int64_t norm_rows_per_block = 16;
/// Returns the number of floats of scratch memory that norm_backward_cuda() needs for the sums of
/// all blocks.
inline int64_t norm_sum_scratch(const NormRows& n) {
  return (n.rows + norm_rows_per_block - 1) / norm_rows_per_block * 2 * n.columns;
}

/// Computes y = (x - mean) rstd weight + bias, and writes n.mean and n.rstd.
void norm_forward(const NormRows& n, Matrix x, Matrix y, float eps);
/// Writes the gradient of x to dx, or adds it to dx if `add` is true. Does neither if dx has no
/// data. Also writes dweight and dbias [columns] if they are not null. The gradient is rstd (g -
/// avg(g) - h avg(g h)), where g = dy weight and h = (x - mean) rstd. For RMS norm, the term avg(g)
/// is absent.
void norm_backward(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add, float* dweight,
                   float* dbias);

}  // namespace lathe
