// Defines kernels that sum the columns of a matrix. A `Source` reads or computes the elements. Sums
// are in float32 and always in the same order.
#pragma once

#include "core/kernels/launch.cuh"
#include "core/kernels/linear_gpu.h"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int column_threads = 256;

/// Each block of threads sums column_sum_rows rows of a tile of columns. Each of the block's 8
/// warps sums every eighth row, and each thread of a warp sums a pack of Source::width columns.
/// source(i, values) writes pack i of the matrix to `values`.
template <class Source>
__global__ void column_sums_kernel(Source source, int64_t rows, int64_t columns, float* partials) {
  constexpr int width = Source::width, warps = column_threads / 32, tile = 32 * width;
  __shared__ float sums[warps][tile];
  const int64_t tiles = (columns + tile - 1) / tile;
  const int64_t part = blockIdx.x / tiles, first = blockIdx.x % tiles * tile;
  const int64_t begin = part * column_sum_rows,
                end = begin + column_sum_rows < rows ? begin + column_sum_rows : rows;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);

  float sum[width] = {};
  if (first + lane * width < columns) {
#pragma unroll 4
    for (int64_t row = begin + warp; row < end; row += warps) {
      float values[width];
      source((row * columns + first) / width + lane, values);
      for (int k = 0; k < width; ++k) sum[k] += values[k];
    }
  }
  for (int k = 0; k < width; ++k) sums[warp][lane * width + k] = sum[k];
  __syncthreads();

  const auto column = static_cast<int64_t>(threadIdx.x);
  if (column >= tile || first + column >= columns) return;
  float total = 0;
  for (int w = 0; w < warps; ++w) total += sums[w][column];
  partials[part * columns + first + column] = total;
}

/// Sums the partial sums of each column.
__global__ void column_totals_kernel(const float* partials, int64_t rows, int64_t columns,
                                     float* sums) {
  const int64_t column = blockIdx.x * 32 + threadIdx.x % 32;
  const float total = column_total<column_threads / 32>(partials, rows, columns, column);
  if (threadIdx.x < 32 && column < columns) sums[column] = total;
}

/// Writes the sums of the columns of `source` to `sums`. `partials` is scratch memory of
/// column_sum_scratch() floats.
template <class Source>
void launch_column_sums(const Source& source, int64_t rows, int64_t columns, float* partials,
                        float* sums, cudaStream_t stream) {
  constexpr int tile = 32 * Source::width;
  static_assert(tile <= column_threads);
  const int64_t parts = (rows + column_sum_rows - 1) / column_sum_rows,
                tiles = (columns + tile - 1) / tile;
  if (rows > 0) {
    launch(column_sums_kernel<Source>, parts * tiles, column_threads, stream, source, rows, columns,
           partials);
  }
  launch(column_totals_kernel, (columns + 31) / 32, column_threads, stream,
         static_cast<const float*>(partials), parts, columns, sums);
}

}  // namespace
}  // namespace lathe
