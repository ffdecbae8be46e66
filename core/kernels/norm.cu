#include "core/kernels/norm.cuh"

#include <type_traits>

#include "core/kernels/launch.cuh"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int norm_width = 4;       // elements in a pack
constexpr int rows_of_a_block = 8;  // number of rows of a block of threads if each warp processes a
                                    // row

/// The group of threads that processes a short row, whose elements fit into the registers of a
/// warp. The group is one warp, which needs no barriers.
struct Warp {
  static __device__ int64_t row() {
    return blockIdx.x * int64_t{rows_of_a_block} + threadIdx.x / 32;
  }
  static __device__ int64_t first() { return threadIdx.x % 32; }
  static __device__ int64_t step() { return 32; }
  static __device__ float sum(float x) { return warp_sum(x); }
};
/// The group of threads that processes a longer row. The group is a block of threads.
struct Block {
  static __device__ int64_t row() { return blockIdx.x; }
  static __device__ int64_t first() { return threadIdx.x; }
  static __device__ int64_t step() { return blockDim.x; }
  static __device__ float sum(float x) { return block_sum(x); }
};

/// Calls f(k, i) for each pack of a row that the calling thread holds. A thread holds at most
/// `held` packs. k is the number of the pack in this thread, from 0, and i = Group::first() + k *
/// Group::step() is the pack's index in the row.
template <class Group, int held, class F>
__device__ void for_packs(int64_t columns, F&& f) {
#pragma unroll
  for (int k = 0; k < held; ++k) {
    const int64_t i = Group::first() + k * Group::step();
    if (i < columns / norm_width) f(k, i);
  }
}

template <class Group, int held, class In, class Out>
__global__ void norm_forward_kernel(NormRows n, const In* x, Out* y, float eps) {
  const int64_t row = Group::row();
  const bool has_row = row < n.rows;  // false for a warp beyond the last row; such a warp only
                                      // takes part in sums
  const int64_t columns = has_row ? n.columns : 0;
  const float inverse = 1.0f / static_cast<float>(n.columns);
  // Keep the row in registers, so that x is read only once.
  float v[held][norm_width], sum = 0, squares = 0, mean = 0;
  for_packs<Group, held>(columns, [&](int k, int64_t i) {
    load_pack<norm_width>(x + row * n.columns, i, v[k]);
    for (const float e : v[k]) sum += e;
  });

  // All threads of a block take the same branch on n.mean, so the sums in the branch may
  // synchronize the block.
  if (n.mean != nullptr) mean = Group::sum(sum) * inverse;
  for_packs<Group, held>(columns, [&](int k, int64_t) {
    for (float& e : v[k]) {
      e -= mean;
      squares += e * e;
    }
  });
  const float variance = Group::sum(squares) * inverse;

  // If the squares overflow, rstd = 1 / infinity would replace the values of a diverged run by
  // zeros, so set rstd to NaN.
  const float rstd = variance < INFINITY ? 1.0f / sqrtf(variance + eps) : NAN;

  if (Group::first() == 0 && has_row) {
    if (n.mean != nullptr) n.mean[row] = mean;
    n.rstd[row] = rstd;
  }

  for_packs<Group, held>(columns, [&](int k, int64_t i) {
    float w[norm_width] = {1, 1, 1, 1}, b[norm_width] = {};
    if (n.weight != nullptr) load_pack<norm_width>(n.weight, i, w);
    if (n.bias != nullptr) load_pack<norm_width>(n.bias, i, b);
    for (int e = 0; e < norm_width; ++e) v[k][e] = v[k][e] * rstd * w[e] + b[e];
    store_pack<norm_width>(y + row * n.columns, i, v[k]);
  });
}

/// Each block of threads processes norm_rows_per_block rows, and writes the sums of dy h and dy
/// over these rows to its part of `partials`.
template <int held, class In, class Grad>
__global__ void norm_backward_kernel(NormRows n, const In* x, const Grad* dy, In* dx, bool add,
                                     float* partials) {
  const float inverse = 1.0f / static_cast<float>(n.columns);
  const int64_t begin = blockIdx.x * norm_rows_per_block,
                end = begin + norm_rows_per_block < n.rows ? begin + norm_rows_per_block : n.rows;
  // A thread keeps the sums of dweight and dbias for its columns in registers, over all rows.
  float dw[held][norm_width] = {}, db[held][norm_width] = {};

  for (int64_t row = begin; row < end; ++row) {
    const float mean = n.mean == nullptr ? 0 : n.mean[row], rstd = n.rstd[row];
    float h[held][norm_width], g[held][norm_width], sum_g = 0, sum_gh = 0;

    // Compute h = (x - mean) rstd and g = dy weight, as in norm.h.
    for_packs<Block, held>(n.columns, [&](int k, int64_t i) {
      float w[norm_width] = {1, 1, 1, 1};
      if (n.weight != nullptr) load_pack<norm_width>(n.weight, i, w);
      load_pack<norm_width>(x + row * n.columns, i, h[k]);
      load_pack<norm_width>(dy + row * n.columns, i, g[k]);
      for (int e = 0; e < norm_width; ++e) {
        h[k][e] = (h[k][e] - mean) * rstd;
        dw[k][e] += g[k][e] * h[k][e];
        db[k][e] += g[k][e];
        g[k][e] *= w[e];
        sum_g += g[k][e];
        sum_gh += g[k][e] * h[k][e];
      }
    });

    if (dx == nullptr) continue;
    block_sums(sum_g, sum_gh);
    const float avg_g = n.mean == nullptr ? 0 : sum_g * inverse, avg_gh = sum_gh * inverse;

    for_packs<Block, held>(n.columns, [&](int k, int64_t i) {
      float before[norm_width] = {};
      if (add) load_pack<norm_width>(dx + row * n.columns, i, before);
      for (int e = 0; e < norm_width; ++e) before[e] += rstd * (g[k][e] - avg_g - h[k][e] * avg_gh);
      store_pack<norm_width>(dx + row * n.columns, i, before);
    });
  }

  // norm_sums_kernel() adds the parts of all blocks, always in the same order.
  if (partials == nullptr) return;
  float* mine = partials + int64_t{2} * blockIdx.x * n.columns;
  for_packs<Block, held>(n.columns, [&](int k, int64_t i) {
    store_pack<norm_width>(mine, i, dw[k]);
    store_pack<norm_width>(mine + n.columns, i, db[k]);
  });
}

constexpr int norm_sum_warps = 32;

/// Sums the columns of `partials`. Each block of threads sums 32 columns.
__global__ void norm_sums_kernel(const float* partials, int64_t rows, int64_t columns,
                                 float* dweight, float* dbias) {
  const int64_t column = blockIdx.x * 32 + threadIdx.x % 32;
  const float sum = column_total<norm_sum_warps>(partials, rows, 2 * columns, column);
  if (threadIdx.x >= 32 || column >= 2 * columns) return;
  float* total = column < columns ? dweight : dbias;
  if (total != nullptr) total[column % columns] = sum;
}

int threads_of(int64_t columns) {
  const int64_t packs = columns / norm_width;
  return static_cast<int>(packs >= 1024 ? 1024 : (packs + 31) / 32 * 32);
}

/// Calls f with the number of packs of a row that each thread holds if a block of threads processes
/// the row. The number is a compile-time constant.
template <class F>
void with_held(int64_t columns, F&& f) {
  const int64_t held = (columns / norm_width + 1023) / 1024;
  if (held <= 1) return f(std::integral_constant<int, 1>{});
  f(std::integral_constant<int, 2>{});
}

/// Calls f with the number of packs of a row that each thread holds if a warp processes the row.
/// Returns false if the registers of a warp can't hold the row.
template <class F>
bool with_held_by_warp(int64_t columns, F&& f) {
  const int64_t held = (columns / norm_width + 31) / 32;
  if (held > 8) return false;
  if (held <= 1) {
    f(std::integral_constant<int, 1>{});
  } else if (held <= 3) {
    f(std::integral_constant<int, 3>{});
  } else if (held <= 6) {
    f(std::integral_constant<int, 6>{});
  } else {
    f(std::integral_constant<int, 8>{});
  }
  return true;
}

template <class Group, int held, class In, class Out>
void launch_norm_forward(int64_t blocks, int threads, const NormRows& n, Matrix x, Matrix y,
                         float eps, cudaStream_t stream) {
  launch(norm_forward_kernel<Group, held, In, Out>, blocks, threads, stream, n,
         static_cast<const In*>(x.data), static_cast<Out*>(const_cast<void*>(y.data)), eps);
}

}  // namespace

cudaError_t norm_forward_cuda(const NormRows& n, Matrix x, Matrix y, float eps,
                              cudaStream_t stream) {
  if (n.rows == 0) return cudaSuccess;
  if (!norm_on_gpu(n.columns)) return cudaErrorInvalidValue;
  const bool done = with_gpu_elements(x.type, y.type, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    const bool is_short = with_held_by_warp(n.columns, [&](auto held) {
      launch_norm_forward<Warp, held, In, Out>((n.rows + rows_of_a_block - 1) / rows_of_a_block,
                                               32 * rows_of_a_block, n, x, y, eps, stream);
    });
    if (is_short) return;
    with_held(n.columns, [&](auto held) {
      launch_norm_forward<Block, held, In, Out>(n.rows, threads_of(n.columns), n, x, y, eps,
                                                stream);
    });
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t norm_backward_cuda(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add,
                               float* partials, float* dweight, float* dbias, cudaStream_t stream) {
  if (!norm_on_gpu(n.columns)) return cudaErrorInvalidValue;
  const int64_t blocks = (n.rows + norm_rows_per_block - 1) / norm_rows_per_block;
  bool done = n.rows == 0;
  if (!done) {
    done = with_gpu_elements(x.type, dy.type, [&](auto in, auto grad) {
      using In = decltype(in);
      using Grad = decltype(grad);
      with_held(n.columns, [&](auto held) {
        launch(norm_backward_kernel<held, In, Grad>, blocks, threads_of(n.columns), stream, n,
               static_cast<const In*>(x.data), static_cast<const Grad*>(dy.data),
               static_cast<In*>(const_cast<void*>(dx.data)), add, partials);
      });
    });
  }
  if (!done) return cudaErrorInvalidValue;
  if (partials != nullptr)
    launch(norm_sums_kernel, (2 * n.columns + 31) / 32, 32 * norm_sum_warps, stream,
           static_cast<const float*>(partials), blocks, n.columns, dweight, dbias);
  return cudaGetLastError();
}

}  // namespace lathe
