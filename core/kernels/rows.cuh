// Defines helpers of kernels that process rows of elements: wide loads and stores, and sums over a
// block of threads in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "core/kernels/element.h"

namespace lathe {

/// N elements that are loaded or stored together, with one instruction for each 16 bytes.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T at[N];
};

/// Loads pack i of a row as float32.
template <int N, class T>
__device__ void load_pack(const T* row, int64_t i, float* out) {
  const Pack<T, N> pack = reinterpret_cast<const Pack<T, N>*>(row)[i];
#pragma unroll
  for (int k = 0; k < N; ++k) out[k] = static_cast<float>(pack.at[k]);
}
/// Rounds values to T and stores them as pack i of a row.
template <int N, class T>
__device__ void store_pack(T* row, int64_t i, const float* values) {
  Pack<T, N> pack;
#pragma unroll
  for (int k = 0; k < N; ++k) pack.at[k] = static_cast<T>(values[k]);
  reinterpret_cast<Pack<T, N>*>(row)[i] = pack;
}

namespace {

/// Returns e^x. If T is a 16-bit type, the relative error for |x| <= 88 is at most 5e-6, which is
/// far below the rounding error of T.
template <class T>
__device__ float exp_of(float x) {
  constexpr float log2_e = 1.4426950408889634f;
  return sizeof(T) == 4 ? expf(x) : exp2f(x * log2_e);
}
/// Returns 1 / x. If T is a 16-bit type, |x| must be from 2^-126 to 2^126, and the error is at most
/// 2 units in the last place of a float32.
template <class T>
__device__ float inverse_of(float x) {
  return sizeof(T) == 4 ? 1 / x : __fdividef(1, x);
}

/// Returns the sum of `a` over a warp. Every thread gets the result.
__device__ float warp_sum(float a) {
  for (int lane = 16; lane > 0; lane /= 2) a += __shfl_xor_sync(0xffffffffu, a, lane);
  return a;
}

/// Replaces a and b by their sums over the block of threads. Every thread gets the sums. The block
/// must consist of complete warps.
__device__ void block_sums(float& a, float& b) {
  __shared__ float warps[2][32];
  for (int lane = 16; lane > 0; lane /= 2) {
    a += __shfl_xor_sync(0xffffffffu, a, lane);
    b += __shfl_xor_sync(0xffffffffu, b, lane);
  }
  __syncthreads();  // all threads have read the sums of the previous call
  if (threadIdx.x % 32 == 0) warps[0][threadIdx.x / 32] = a, warps[1][threadIdx.x / 32] = b;
  __syncthreads();
  a = b = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) a += warps[0][w], b += warps[1][w];
}
__device__ float block_sum(float a) {
  float none = 0;
  block_sums(a, none);
  return a;
}

/// Returns the maximum of `a` over the block of threads. Every thread gets the result. Ignores NaN.
__device__ float block_max(float a) {
  __shared__ float warps[32];
  for (int lane = 16; lane > 0; lane /= 2) a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, lane));
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = a;
  __syncthreads();
  a = warps[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) a = fmaxf(a, warps[w]);
  return a;
}

/// Returns the sum of one column of `partials` [rows, columns]; 0 if `column` is beyond the last
/// column. Every thread gets the result. The block must have `warps` warps, and all threads with
/// the same threadIdx.x % 32 must pass the same `column`.
template <int warps>
__device__ float column_total(const float* partials, int64_t rows, int64_t columns,
                              int64_t column) {
  __shared__ float sums[warps][32];
  float sum = 0;
  for (int64_t r = threadIdx.x / 32; r < rows && column < columns; r += warps)
    sum += partials[r * columns + column];
  __syncthreads();  // all threads have read the sums of the previous call
  sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < warps; ++w) sum += sums[w][threadIdx.x % 32];
  return sum;
}

}  // namespace

/// Calls f with a value of the C++ type of `type`. Returns false for float64, which these kernels
/// do not support.
template <class F>
bool with_gpu_element(Element type, F&& f) {
  switch (type) {
    case Element::f32: f(float{}); return true;
    case Element::bf16: f(__nv_bfloat16{}); return true;
    case Element::f16: f(__half{}); return true;
    case Element::f64: break;
  }
  return false;
}
/// Calls f with a value of the C++ type of `a` and one of the C++ type of `b`. Returns false if `a`
/// or `b` is float64.
template <class F>
bool with_gpu_elements(Element a, Element b, F&& f) {
  bool done = false;
  with_gpu_element(
      a, [&](auto first) { done = with_gpu_element(b, [&](auto second) { f(first, second); }); });
  return done;
}

}  // namespace lathe
