#include "core/kernels/linear.cuh"

#include "core/kernels/launch.cuh"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int linear_threads = 256, linear_width = 4;
constexpr int64_t tile_columns = 32 * linear_width;

/// A block adds up column_sum_rows rows of a tile of columns: each of its 8 warps every eighth row,
/// each lane a pack of columns.
template <class T>
__global__ void column_sums_kernel(const T* x, int64_t rows, int64_t columns, float* partials) {
  constexpr int warps = linear_threads / 32;
  __shared__ float sums[warps][tile_columns];
  const int64_t tiles = (columns + tile_columns - 1) / tile_columns;
  const int64_t part = blockIdx.x / tiles, first = blockIdx.x % tiles * tile_columns;
  const int64_t begin = part * column_sum_rows,
                end = begin + column_sum_rows < rows ? begin + column_sum_rows : rows;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);

  float sum[linear_width] = {};
  if (first + lane * linear_width < columns) {
    for (int64_t row = begin + warp; row < end; row += warps) {
      float values[linear_width];
      load_pack<linear_width>(x + row * columns + first, lane, values);
      for (int k = 0; k < linear_width; ++k) sum[k] += values[k];
    }
  }
  for (int k = 0; k < linear_width; ++k) sums[warp][lane * linear_width + k] = sum[k];
  __syncthreads();

  const auto column = static_cast<int64_t>(threadIdx.x);
  if (column >= tile_columns || first + column >= columns) return;
  float total = 0;
  for (int w = 0; w < warps; ++w) total += sums[w][column];
  partials[part * columns + first + column] = total;
}

__global__ void column_totals_kernel(const float* partials, int64_t rows, int64_t columns,
                                     float* sums) {
  const int64_t column = blockIdx.x * 32 + threadIdx.x % 32;
  const float total = column_total(partials, rows, columns, column);
  if (threadIdx.x < 32 && column < columns) sums[column] = total;
}

template <class A, class B>
__global__ void add_kernel(const A* a, const B* b, A* out, int64_t n) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= n / linear_width) return;
  float x[linear_width], y[linear_width];
  load_pack<linear_width>(a, i, x);
  load_pack<linear_width>(b, i, y);
  for (int k = 0; k < linear_width; ++k) x[k] += y[k];
  store_pack<linear_width>(out, i, x);
}

}  // namespace

cudaError_t column_sums_cuda(Matrix x, int64_t rows, int64_t columns, float* partials, float* sums,
                             cudaStream_t stream) {
  if (!column_sums_on_gpu(columns)) return cudaErrorInvalidValue;
  const int64_t parts = (rows + column_sum_rows - 1) / column_sum_rows,
                tiles = (columns + tile_columns - 1) / tile_columns;
  const bool done = rows == 0 || with_gpu_element(x.type, [&](auto element) {
                      using T = decltype(element);
                      launch(column_sums_kernel<T>, parts * tiles, linear_threads, stream,
                             static_cast<const T*>(x.data), rows, columns, partials);
                    });
  if (!done) return cudaErrorInvalidValue;
  launch(column_totals_kernel, (columns + 31) / 32, linear_threads, stream,
         static_cast<const float*>(partials), parts, columns, sums);
  return cudaGetLastError();
}

cudaError_t add_cuda(const void* a, Element a_type, const void* b, Element b_type, void* out,
                     int64_t n, cudaStream_t stream) {
  if (n % linear_width != 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  const int64_t blocks = (n / linear_width + linear_threads - 1) / linear_threads;
  bool done = false;
  with_gpu_element(a_type, [&](auto left) {
    done = with_gpu_element(b_type, [&](auto right) {
      using A = decltype(left);
      using B = decltype(right);
      launch(add_kernel<A, B>, blocks, linear_threads, stream, static_cast<const A*>(a),
             static_cast<const B*>(b), static_cast<A*>(out), n);
    });
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

}  // namespace lathe
