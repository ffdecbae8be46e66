#include "core/kernels/norm.cuh"

#include <type_traits>

#include "core/kernels/launch.cuh"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int norm_width = 4;  // elements in a pack

/// Calls f(k, i) for the packs of a row that a thread holds: i = t, t + blockDim.x, ..., at most
/// `held` of them.
template <int held, class F>
__device__ void for_packs(int64_t columns, F&& f) {
#pragma unroll
  for (int k = 0; k < held; ++k) {
    const int64_t i = threadIdx.x + static_cast<int64_t>(k) * blockDim.x;
    if (i < columns / norm_width) f(k, i);
  }
}

template <int held, class In, class Out>
__global__ void norm_forward_kernel(NormRows n, const In* x, Out* y, float eps) {
  const auto row = static_cast<int64_t>(blockIdx.x);
  const float inverse = 1.0f / static_cast<float>(n.columns);
  // The row stays in registers: x is read once.
  float v[held][norm_width], sum = 0, squares = 0, mean = 0;
  for_packs<held>(n.columns, [&](int k, int64_t i) {
    load_pack<norm_width>(x + row * n.columns, i, v[k]);
    for (const float e : v[k]) sum += e;
  });

  // The branches on n.mean are the same for a whole block, so its sums may synchronize.
  if (n.mean != nullptr) mean = block_sum(sum) * inverse;
  for_packs<held>(n.columns, [&](int k, int64_t) {
    for (float& e : v[k]) e -= mean, squares += e * e;
  });
  const float variance = block_sum(squares) * inverse;

  // If squares overflow, 1 / infinity would turn a diverged run's values into zeros.
  const float rstd = variance < INFINITY ? 1.0f / sqrtf(variance + eps) : NAN;

  if (threadIdx.x == 0) {
    if (n.mean != nullptr) n.mean[row] = mean;
    n.rstd[row] = rstd;
  }

  for_packs<held>(n.columns, [&](int k, int64_t i) {
    float w[norm_width] = {1, 1, 1, 1}, b[norm_width] = {};
    if (n.weight != nullptr) load_pack<norm_width>(n.weight, i, w);
    if (n.bias != nullptr) load_pack<norm_width>(n.bias, i, b);
    for (int e = 0; e < norm_width; ++e) v[k][e] = v[k][e] * rstd * w[e] + b[e];
    store_pack<norm_width>(y + row * n.columns, i, v[k]);
  });
}

/// Each block processes norm_chunk rows, and leaves the sums of dy h and dy over them in its part
/// of `partials`.
template <int held, class In, class Grad>
__global__ void norm_backward_kernel(NormRows n, const In* x, const Grad* dy, In* dx, bool add,
                                     float* partials) {
  const float inverse = 1.0f / static_cast<float>(n.columns);
  const int64_t begin = blockIdx.x * norm_chunk,
                end = begin + norm_chunk < n.rows ? begin + norm_chunk : n.rows;
  // A thread keeps its columns' sums of dweight and dbias in registers through all rows.
  float dw[held][norm_width] = {}, db[held][norm_width] = {};

  for (int64_t row = begin; row < end; ++row) {
    const float mean = n.mean == nullptr ? 0 : n.mean[row], rstd = n.rstd[row];
    float h[held][norm_width], g[held][norm_width], sum_g = 0, sum_gh = 0;

    // h = (x - mean) rstd and g = dy weight, as in norm.h.
    for_packs<held>(n.columns, [&](int k, int64_t i) {
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

    for_packs<held>(n.columns, [&](int k, int64_t i) {
      float before[norm_width] = {};
      if (add) load_pack<norm_width>(dx + row * n.columns, i, before);
      for (int e = 0; e < norm_width; ++e) before[e] += rstd * (g[k][e] - avg_g - h[k][e] * avg_gh);
      store_pack<norm_width>(dx + row * n.columns, i, before);
    });
  }

  // The blocks' parts are summed by norm_sums_kernel, in one order.
  if (partials == nullptr) return;
  float* mine = partials + int64_t{2} * blockIdx.x * n.columns;
  for_packs<held>(n.columns, [&](int k, int64_t i) {
    store_pack<norm_width>(mine, i, dw[k]);
    store_pack<norm_width>(mine + n.columns, i, db[k]);
  });
}

/// Sums the partials' columns: each block takes 32 columns.
__global__ void norm_sums_kernel(const float* partials, int64_t rows, int64_t columns,
                                 float* dweight, float* dbias) {
  const int64_t column = blockIdx.x * 32 + threadIdx.x % 32;
  const float sum = column_total(partials, rows, 2 * columns, column);
  if (threadIdx.x >= 32 || column >= 2 * columns) return;
  float* total = column < columns ? dweight : dbias;
  if (total != nullptr) total[column % columns] = sum;
}

int threads_of(int64_t columns) {
  const int64_t packs = columns / norm_width;
  return static_cast<int>(packs >= 1024 ? 1024 : (packs + 31) / 32 * 32);
}

/// Calls f with the number of packs that a thread holds, as a constant.
template <class F>
void with_held(int64_t columns, F&& f) {
  const int64_t held = (columns / norm_width + 1023) / 1024;
  if (held <= 1) return f(std::integral_constant<int, 1>{});
  f(std::integral_constant<int, 2>{});
}

}  // namespace

cudaError_t norm_forward_cuda(const NormRows& n, Matrix x, Matrix y, float eps,
                              cudaStream_t stream) {
  if (n.rows == 0) return cudaSuccess;
  if (!norm_on_gpu(n.columns)) return cudaErrorInvalidValue;
  bool done = false;
  with_gpu_element(x.type, [&](auto in) {
    done = with_gpu_element(y.type, [&](auto out) {
      with_held(n.columns, [&](auto held) {
        launch(norm_forward_kernel<held, decltype(in), decltype(out)>, n.rows,
               threads_of(n.columns), stream, n, static_cast<const decltype(in)*>(x.data),
               static_cast<decltype(out)*>(const_cast<void*>(y.data)), eps);
      });
    });
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t norm_backward_cuda(const NormRows& n, Matrix x, Matrix dy, Matrix dx, bool add,
                               float* partials, float* dweight, float* dbias, cudaStream_t stream) {
  if (!norm_on_gpu(n.columns)) return cudaErrorInvalidValue;
  const int64_t blocks = (n.rows + norm_chunk - 1) / norm_chunk;
  bool done = n.rows == 0;
  if (!done) {
    with_gpu_element(x.type, [&](auto in) {
      done = with_gpu_element(dy.type, [&](auto grad) {
        with_held(n.columns, [&](auto held) {
          launch(norm_backward_kernel<held, decltype(in), decltype(grad)>, blocks,
                 threads_of(n.columns), stream, n, static_cast<const decltype(in)*>(x.data),
                 static_cast<const decltype(grad)*>(dy.data),
                 static_cast<decltype(in)*>(const_cast<void*>(dx.data)), add, partials);
        });
      });
    });
  }
  if (!done) return cudaErrorInvalidValue;
  if (partials != nullptr)
    launch(norm_sums_kernel, (2 * n.columns + 31) / 32, 256, stream,
           static_cast<const float*>(partials), blocks, n.columns, dweight, dbias);
  return cudaGetLastError();
}

}  // namespace lathe
