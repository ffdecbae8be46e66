#include "core/kernels/swiglu.cuh"

#include "core/kernels/launch.cuh"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int swiglu_threads = 256;

/// The terms of silu(x) = x s: e = exp(-x) and s = 1 / (1 + e). For x below about -88.7, exp(-x)
/// would overflow. For x below -87, e is therefore set to exp(87), and s to 0. The exact value of s
/// is at most 2e-38 there. Since s is 0, silu(x) is 0 for every finite x below -87. For 16-bit
/// types, the exponential has a relative error of at most 5e-6.
template <class T>
struct Logistic {
  float e, s;

  __device__ explicit Logistic(float given) {
    e = exp_of<T>(given < -87 ? 87 : -given);
    s = inverse_of<T>(1 + e);
    if (given < -87) s = 0;
  }
};

/// The positions of a thread's pack. `dense` is the position in y and dy, whose rows have no gaps
/// between them; `strided` is the position in a, b, da and db.
struct Places {
  int64_t dense, strided;

  __device__ Places(unsigned packs, unsigned stride) {
    const unsigned i = blockIdx.x * swiglu_threads + threadIdx.x, row = i / packs;
    dense = i;
    strided = static_cast<int64_t>(row) * stride + (i - row * packs);
  }
};

/// Each thread processes a pack of elements. `packs` is the number of packs in a row of y. `stride`
/// is the distance between rows of a and b in packs.
template <class T>
__global__ void swiglu_kernel(const T* a, const T* b, T* y, unsigned count, unsigned packs,
                              unsigned stride) {
  constexpr int width = 16 / sizeof(T);
  const Places at(packs, stride);
  if (at.dense >= count) return;

  float left[width], right[width];
  load_pack<width>(a, at.strided, left);
  load_pack<width>(b, at.strided, right);
  for (int k = 0; k < width; ++k) right[k] *= left[k] * Logistic<T>(left[k]).s;
  store_pack<width>(y, at.dense, right);
}

template <class T>
__global__ void swiglu_backward_kernel(const T* a, const T* b, const T* dy, T* da, T* db,
                                       unsigned count, unsigned packs, unsigned stride) {
  constexpr int width = 16 / sizeof(T);
  const Places at(packs, stride);
  if (at.dense >= count) return;

  float left[width], right[width], d[width];
  load_pack<width>(a, at.strided, left);
  load_pack<width>(b, at.strided, right);
  load_pack<width>(dy, at.dense, d);
  for (int k = 0; k < width; ++k) {
    const float x = left[k];
    const Logistic<T> l(x);
    // silu'(x) = s + x s (1 - s). 1 - s is computed as e s, to avoid cancellation. The term 0 * x
    // makes the result NaN if x is infinite or NaN.
    const float derivative = l.s + x * l.s * (l.e * l.s) + 0 * x;
    left[k] = d[k] * (right[k] * derivative);
    right[k] = d[k] * (x * l.s);
  }
  store_pack<width>(da, at.strided, left);
  store_pack<width>(db, at.strided, right);
}

/// Calls f with a value of the C++ type of `type` and three numbers: the number of packs in y, the
/// number of packs in a row of y, and the distance between rows of a and b in packs.
template <class F>
cudaError_t with_packs(Element type, int64_t rows, int64_t h, int64_t stride, F&& f) {
  if (!swiglu_on_gpu(type, rows, h, stride)) return cudaErrorInvalidValue;
  with_gpu_element(type, [&](auto element) {
    constexpr int64_t width = 16 / sizeof(element);
    if (rows > 0)
      f(element, static_cast<unsigned>(rows * h / width), static_cast<unsigned>(h / width),
        static_cast<unsigned>(stride / width));
  });
  return cudaGetLastError();
}

int64_t blocks_for(unsigned count) {
  return (int64_t{count} + swiglu_threads - 1) / swiglu_threads;
}

}  // namespace

cudaError_t swiglu_forward_cuda(const void* a, const void* b, void* y, Element type, int64_t rows,
                                int64_t h, int64_t stride, cudaStream_t stream) {
  return with_packs(type, rows, h, stride,
                    [&](auto element, unsigned count, unsigned packs, unsigned between) {
                      using T = decltype(element);
                      launch(swiglu_kernel<T>, blocks_for(count), swiglu_threads, stream,
                             static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y),
                             count, packs, between);
                    });
}

cudaError_t swiglu_backward_cuda(const void* a, const void* b, const void* dy, void* da, void* db,
                                 Element type, int64_t rows, int64_t h, int64_t stride,
                                 cudaStream_t stream) {
  return with_packs(
      type, rows, h, stride, [&](auto element, unsigned count, unsigned packs, unsigned between) {
        using T = decltype(element);
        launch(swiglu_backward_kernel<T>, blocks_for(count), swiglu_threads, stream,
               static_cast<const T*>(a), static_cast<const T*>(b), static_cast<const T*>(dy),
               static_cast<T*>(da), static_cast<T*>(db), count, packs, between);
      });
}

}  // namespace lathe
