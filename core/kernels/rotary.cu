#include "core/kernels/rotary.cuh"

#include "core/kernels/launch.cuh"
#include "core/kernels/rows.cuh"

namespace lathe {
namespace {

constexpr int rotary_threads = 256;

/// Each thread rotates a pack of pairs. `packs` is the number of packs in the first half of a head.
/// `count` is the number of packs in the first halves of all heads together.
template <class T>
__global__ void rotate_kernel(const T* x, T* y, unsigned count, unsigned heads, unsigned packs,
                              const float* table, unsigned table_rows, float sign) {
  constexpr int width = 16 / sizeof(T);
  const unsigned i = blockIdx.x * rotary_threads + threadIdx.x;
  if (i >= count) return;
  const unsigned head = i / packs, pack = i - head * packs, row = head / heads % table_rows;
  const int64_t first = static_cast<int64_t>(head) * 2 * packs + pack;
  const float* angles = table + static_cast<int64_t>(row) * 2 * packs * width;

  float a[width], b[width], cos[width], sin[width];
  load_pack<width>(x, first, a);
  load_pack<width>(x, first + packs, b);
  load_pack<width>(angles, pack, cos);
  load_pack<width>(angles, pack + packs, sin);
  for (int k = 0; k < width; ++k) {
    const float left = a[k], s = sign * sin[k];
    a[k] = left * cos[k] - b[k] * s;
    b[k] = b[k] * cos[k] + left * s;
  }
  store_pack<width>(y, first, a);
  store_pack<width>(y, first + packs, b);
}

}  // namespace

cudaError_t rotate_heads_cuda(const void* x, void* y, Element type, int64_t rows, int64_t heads,
                              int64_t width, const float* table, int64_t table_rows, bool back,
                              cudaStream_t stream) {
  if (!rotation_on_gpu(type, rows, heads, width)) return cudaErrorInvalidValue;
  const bool done = with_gpu_element(type, [&](auto element) {
    using T = decltype(element);
    constexpr int64_t pack = 16 / sizeof(T);
    const int64_t packs = width / 2 / pack, count = rows * heads * packs;
    if (count == 0) return;
    launch(rotate_kernel<T>, (count + rotary_threads - 1) / rotary_threads, rotary_threads, stream,
           static_cast<const T*>(x), static_cast<T*>(y), static_cast<unsigned>(count),
           static_cast<unsigned>(heads), static_cast<unsigned>(packs), table,
           static_cast<unsigned>(table_rows), back ? -1.0f : 1.0f);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

}  // namespace lathe
