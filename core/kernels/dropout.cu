#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/kernels/dropout.cuh"
#include "core/kernels/launch.cuh"
#include "core/kernels/philox.cuh"

namespace lathe {
namespace {

/// Four elements that one instruction reads or writes.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T of[4];
};

/// Each thread processes Philox blocks of four numbers. The numbers of Philox block `block` decide
/// which of the elements 4 * block to 4 * block + 3 of the global batch are dropped. `by_four` is
/// true if x and y are aligned so that the four elements of a block can be read and written
/// together.
template <class T, class Compute>
__global__ void dropout_kernel(const T* x, T* y, int64_t n, DropoutMask mask, bool by_four) {
  const uint64_t first_block = mask.first / 4;
  const uint64_t last_block = (mask.first + static_cast<uint64_t>(n) - 1) / 4;
  const auto scale = static_cast<Compute>(mask.scale);

  for (uint64_t block = first_block + blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
       block <= last_block; block += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
    const DevicePhilox words(block, mask.step, mask.key);
    const auto dropped = [&](T value, uint64_t w) {
      return words[w] < mask.threshold ? static_cast<T>(0.0f)
                                       : static_cast<T>(static_cast<Compute>(value) * scale);
    };

    const int64_t begin = static_cast<int64_t>(4 * block) - static_cast<int64_t>(mask.first);
    if (by_four && begin + 4 <= n) {
      Four<T> four = *reinterpret_cast<const Four<T>*>(x + begin);
#pragma unroll
      for (uint64_t w = 0; w < 4; ++w) four.of[w] = dropped(four.of[w], w);
      *reinterpret_cast<Four<T>*>(y + begin) = four;
      continue;
    }

#pragma unroll
    for (uint64_t w = 0; w < 4; ++w) {
      const int64_t i = begin + static_cast<int64_t>(w);
      if (i >= 0 && i < n) y[i] = dropped(x[i], w);
    }
  }
}

template <class T, class Compute>
cudaError_t launch_dropout(const void* x, void* y, int64_t n, const DropoutMask& mask,
                           cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const int64_t blocks = n / 4 + 2, threads = 256;
  const int64_t grid = (blocks + threads - 1) / threads;
  const bool by_four =
      mask.first % 4 == 0 && is_aligned(x, sizeof(Four<T>)) && is_aligned(y, sizeof(Four<T>));
  launch(dropout_kernel<T, Compute>, grid < 65536 ? grid : 65536, static_cast<int>(threads), stream,
         static_cast<const T*>(x), static_cast<T*>(y), n, mask, by_four);
  return cudaGetLastError();
}

}  // namespace

cudaError_t dropout_cuda(const void* x, void* y, int64_t n, Element type, DropoutMask mask,
                         cudaStream_t stream) {
  switch (type) {
    case Element::f32: return launch_dropout<float, float>(x, y, n, mask, stream);
    case Element::f64: return launch_dropout<double, double>(x, y, n, mask, stream);
    case Element::f16: return launch_dropout<__half, float>(x, y, n, mask, stream);
    case Element::bf16: return launch_dropout<__nv_bfloat16, float>(x, y, n, mask, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace lathe
