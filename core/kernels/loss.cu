#include "core/kernels/loss.cuh"

#include "core/kernels/launch.cuh"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int loss_threads = 512;

/// Each block processes one row in two passes. The first computes the row's maximum and the sum of
/// exponentials together (Milakov and Gimelshein 2018); in the second the row is in the GPU's
/// cache.
template <class T>
__global__ void cross_entropy_kernel(T* logits, int64_t stride, int64_t classes,
                                     const int64_t* targets, int64_t ignore, float weight,
                                     bool gradient, float* losses) {
  constexpr int width = 16 / sizeof(T);
  T* row = logits + blockIdx.x * stride;
  const int64_t target = targets[blockIdx.x], packs = stride / width;
  // An ignored row has no loss, and its gradient is zero.
  if (target == ignore) {
    const float zeros[width] = {};
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    for (int64_t i = threadIdx.x; gradient && i < packs; i += loss_threads)
      store_pack<width>(row, i, zeros);
    return;
  }

  // Each thread keeps a maximum and the sum relative to it. Elements beyond the classes are
  // padding.
  float most = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < packs; i += loss_threads) {
    float v[width], next = most;
    load_pack<width>(row, i, v);
    for (int e = 0; e < width; ++e) {
      if (i * width + e >= classes) v[e] = -INFINITY;
      next = fmaxf(next, v[e]);
    }
    if (next > most) sum *= expf(most - next), most = next;
    for (int e = 0; e < width; ++e) {
      if (v[e] != -INFINITY) sum += expf(v[e] - most);
    }
  }

  // Bring the threads' sums to the common maximum. A maximum of -infinity has a sum of 0, and its
  // difference to `highest` could be NaN.
  const float highest = block_max(most);
  sum = block_sum(most == -INFINITY ? sum : sum * expf(most - highest));

  // A kernel can't throw, so a target that is not a class makes the loss NaN.
  const bool known = target >= 0 && target < classes;
  if (threadIdx.x == 0)
    losses[blockIdx.x] = known ? logf(sum) + highest - static_cast<float>(row[target]) : NAN;

  if (!gradient) return;
  __syncthreads();  // the target's logit has been read

  const float scale = known ? weight / sum : NAN;
  for (int64_t i = threadIdx.x; i < packs; i += loss_threads) {
    float v[width];
    load_pack<width>(row, i, v);
    for (int e = 0; e < width; ++e) {
      const int64_t c = i * width + e;
      v[e] = c < classes ? expf(v[e] - highest) * scale - (c == target ? weight : 0.0f) : 0.0f;
    }
    store_pack<width>(row, i, v);
  }
}

}  // namespace

cudaError_t cross_entropy_rows_cuda(Matrix logits, int64_t rows, int64_t classes,
                                    const int64_t* targets, int64_t ignore, float weight,
                                    bool gradient, float* losses, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const bool done = with_gpu_element(logits.type, [&](auto element) {
    using T = decltype(element);
    launch(cross_entropy_kernel<T>, rows, loss_threads, stream,
           static_cast<T*>(const_cast<void*>(logits.data)), logits.stride, classes, targets, ignore,
           weight, gradient, losses);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

}  // namespace lathe
