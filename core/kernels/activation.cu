#include "core/kernels/activation.cuh"

#include "core/kernels/launch.cuh"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int activation_threads = 256;

/// Returns the same as gelu_grad in core/kernels/activation-inl.h. Beyond +-10 it is 0 or 1 to
/// 1e-36, and e would overflow.
__device__ float gelu_grad(float given) {
  const float x = given < -10 ? -10 : given > 10 ? 10 : given, square = x * x;
  const float twice_k = 1.5957691216057308f, c = 0.044715f;
  const float e = expf(-x * twice_k * (1 + c * square)), s = 1 / (1 + e);
  return s + x * twice_k * (1 + 3 * c * square) * s * (e * s);
}

/// Each thread processes a pack of elements; the elements after the last complete pack have a
/// thread each.
template <class T>
__global__ void gelu_backward_kernel(const T* x, const T* dy, T* dx, int64_t n) {
  constexpr int width = 16 / sizeof(T);
  const int64_t packs = n / width, i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < packs) {
    float a[width], b[width];
    load_pack<width>(x, i, a);
    load_pack<width>(dy, i, b);
    for (int e = 0; e < width; ++e) b[e] *= gelu_grad(a[e]);
    store_pack<width>(dx, i, b);
  } else if (packs * width + (i - packs) < n) {
    const int64_t at = packs * width + (i - packs);
    dx[at] = static_cast<T>(static_cast<float>(dy[at]) * gelu_grad(static_cast<float>(x[at])));
  }
}

}  // namespace

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
