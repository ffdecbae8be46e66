#include "core/kernels/e4m3.cuh"

#include "core/kernels/e4m3_code.h"
#include "core/kernels/launch.cuh"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int e4m3_threads = 128;

/// Packs rows. Each block of threads packs one row.
template <class T>
__global__ void pack_kernel(const T* x, uint8_t* y, float* factors, int64_t n) {
  const int64_t begin = blockIdx.x * n;
  float largest = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float size = fabsf(static_cast<float>(x[begin + i]));
    largest = size <= largest ? largest : size == size ? size : INFINITY;
  }

  const E4m3Row row(block_max(largest));
  if (threadIdx.x == 0) factors[blockIdx.x] = row.factor;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    y[begin + i] = row.is_finite ? row.code(static_cast<float>(x[begin + i])) : uint8_t{0};
}

template <class T>
__global__ void unpack_kernel(const uint8_t* x, const float* factors, T* y, int64_t n) {
  const float factor = factors[blockIdx.x];
  const int64_t begin = blockIdx.x * n;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    y[begin + i] = static_cast<T>(e4m3_value(x[begin + i]) * factor);
}

}  // namespace

cudaError_t pack_e4m3_cuda(const void* x, Element type, uint8_t* y, float* factors, int64_t rows,
                           int64_t n, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool done = with_gpu_element(type, [&](auto element) {
    using T = decltype(element);
    launch(pack_kernel<T>, rows, e4m3_threads, stream, static_cast<const T*>(x), y, factors, n);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t unpack_e4m3_cuda(const uint8_t* x, const float* factors, void* y, Element type,
                             int64_t rows, int64_t n, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool done = with_gpu_element(type, [&](auto element) {
    using T = decltype(element);
    launch(unpack_kernel<T>, rows, e4m3_threads, stream, x, factors, static_cast<T*>(y), n);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

}  // namespace lathe
