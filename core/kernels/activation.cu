#include "core/kernels/activation.cuh"

#include "core/kernels/columns.cuh"

namespace lathe {
namespace {

constexpr int activation_threads = 256;

/// Returns the same derivative as gelu_grad() in core/kernels/activation-inl.h. Beyond +-10, the
/// derivative differs from 0 or 1 by less than 1e-35. x is clamped to this range, since e would
/// overflow.
template <class T>
__device__ float gelu_grad(float given) {
  const float x = given < -10 ? -10 : given > 10 ? 10 : given, square = x * x;
  const float twice_k = 1.5957691216057308f, c = 0.044715f;
  const float e = exp_of<T>(-x * twice_k * (1 + c * square)), s = inverse_of<T>(1 + e);
  return s + x * twice_k * (1 + 3 * c * square) * s * (e * s);
}

/// Each thread processes a pack of elements. Each element after the last complete pack has a
/// separate thread.
template <class T>
__global__ void gelu_backward_kernel(const T* x, const T* dy, T* dx, int64_t n) {
  constexpr int width = 16 / sizeof(T);
  const int64_t packs = n / width, i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < packs) {
    float a[width], b[width];
    load_pack<width>(x, i, a);
    load_pack<width>(dy, i, b);
    for (int e = 0; e < width; ++e) b[e] *= gelu_grad<T>(a[e]);
    store_pack<width>(dx, i, b);
  } else if (packs * width + (i - packs) < n) {
    const int64_t at = packs * width + (i - packs);
    dx[at] = static_cast<T>(static_cast<float>(dy[at]) * gelu_grad<T>(static_cast<float>(x[at])));
  }
}

/// A source for column_sums_kernel: computes the gradient of GELU's argument, and also writes the
/// gradient to dx.
template <class T>
struct GeluGradient {
  static constexpr int width = 16 / sizeof(T);
  const T *x, *dy;
  T* dx;

  __device__ void operator()(int64_t i, float* values) const {
    float a[width];
    load_pack<width>(x, i, a);
    load_pack<width>(dy, i, values);
    for (int e = 0; e < width; ++e)
      values[e] = static_cast<float>(static_cast<T>(values[e] * gelu_grad<T>(a[e])));
    store_pack<width>(dx, i, values);
  }
};

}  // namespace

cudaError_t gelu_backward_sums_cuda(const void* x, const void* dy, void* dx, Element type,
                                    int64_t rows, int64_t columns, float* partials, float* sums,
                                    cudaStream_t stream) {
  if (!column_sums_on_gpu(columns)) return cudaErrorInvalidValue;
  const bool done = with_gpu_element(type, [&](auto element) {
    using T = decltype(element);
    launch_column_sums(
        GeluGradient<T>{static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dx)},
        rows, columns, partials, sums, stream);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t gelu_backward_cuda(const void* x, const void* dy, void* dx, Element type, int64_t n,
                               cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const bool done = with_gpu_element(type, [&](auto element) {
    using T = decltype(element);
    constexpr int width = 16 / sizeof(T);
    const int64_t takers = n / width + n % width;
    launch(gelu_backward_kernel<T>, (takers + activation_threads - 1) / activation_threads,
           activation_threads, stream, static_cast<const T*>(x), static_cast<const T*>(dy),
           static_cast<T*>(dx), n);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

}  // namespace lathe
