#include "core/kernels/loss.cuh"

#include "core/kernels/launch.cuh"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int most_loss_threads = 1024;

/// Returns the number of threads for a row of `packs` packs. The threads form complete warps. If a
/// block has many threads, few blocks run at the same time, so that their rows stay in the GPU's
/// cache.
int loss_threads(int64_t packs) {
  const int64_t warps = (packs + 31) / 32;
  return static_cast<int>(warps < most_loss_threads / 32 ? 32 * warps : most_loss_threads);
}

/// Each block processes one row in two passes. The first pass computes both the row's maximum and
/// the sum of exponentials (Milakov and Gimelshein 2018). The second pass reads the row from the
/// GPU's cache.
template <class T>
__global__ void __launch_bounds__(most_loss_threads)
    cross_entropy_kernel(T* logits, int64_t stride, int64_t classes, const int64_t* targets,
                         int64_t ignore, float weight, bool gradient, float* losses) {
  constexpr int width = 16 / sizeof(T);
  T* row = logits + blockIdx.x * stride;
  const int64_t target = targets[blockIdx.x];
  const int packs = static_cast<int>(stride / width), step = static_cast<int>(blockDim.x);
  const auto classes_from = [&](int i) { return static_cast<int>(classes) - i * width; };
  // An ignored row has no loss, and its gradient is zero.
  if (target == ignore) {
    const float zeros[width] = {};
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    for (int i = static_cast<int>(threadIdx.x); gradient && i < packs; i += step)
      store_pack<width>(row, i, zeros);
    return;
  }

  // Each thread keeps the maximum of its elements, and the sum of exponentials relative to this
  // maximum. Elements beyond the classes are padding.
  float most = -INFINITY, sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < packs; i += step) {
    float v[width], next = most;
    load_pack<width>(row, i, v);
    const int left = classes_from(i);
    for (int e = 0; e < width; ++e) {
      if (e >= left) v[e] = -INFINITY;
      next = fmaxf(next, v[e]);
    }
    if (next > most) {
      sum *= exp_of<T>(most - next);
      most = next;
    }
    // If the maximum is -infinity, subtracting it from an element of -infinity would give NaN.
    const float base = most == -INFINITY ? 0 : most;
    for (int e = 0; e < width; ++e) sum += exp_of<T>(v[e] - base);
  }

  // Rescale the sums of the threads to the common maximum. If the maximum of a thread is -infinity,
  // its sum is 0, and subtracting `highest` could give NaN.
  const float highest = block_max(most);
  sum = block_sum(most == -INFINITY ? sum : sum * expf(most - highest));

  // A kernel can't throw, so the loss is NaN if the target is not a class.
  const bool known = target >= 0 && target < classes;
  if (threadIdx.x == 0)
    losses[blockIdx.x] = known ? logf(sum) + highest - static_cast<float>(row[target]) : NAN;

  if (!gradient) return;
  __syncthreads();  // the target's logit has been read

  const float scale = known ? weight / sum : NAN;
  for (int i = static_cast<int>(threadIdx.x); i < packs; i += step) {
    float v[width];
    load_pack<width>(row, i, v);
    const int left = classes_from(i), at = static_cast<int>(target) - i * width;
    for (int e = 0; e < width; ++e) {
      const float gradient_of_sum = exp_of<T>(v[e] - highest) * scale;
      v[e] = e >= left ? 0.0f : e == at ? gradient_of_sum - weight : gradient_of_sum;
    }
    store_pack<width>(row, i, v);
  }
}

}  // namespace

cudaError_t cross_entropy_rows_cuda(Matrix logits, int64_t rows, int64_t classes,
                                    const int64_t* targets, int64_t ignore, float weight,
                                    bool gradient, float* losses, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  if (logits.stride > INT32_MAX) return cudaErrorInvalidValue;
  const bool done = with_gpu_element(logits.type, [&](auto element) {
    using T = decltype(element);
    constexpr int64_t width = 16 / sizeof(T);
    launch(cross_entropy_kernel<T>, rows, loss_threads(logits.stride / width), stream,
           static_cast<T*>(const_cast<void*>(logits.data)), logits.stride, classes, targets, ignore,
           weight, gradient, losses);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

}  // namespace lathe
