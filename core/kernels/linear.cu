#include "core/kernels/linear.cuh"

#include "core/kernels/columns.cuh"

namespace lathe {
namespace {

constexpr int linear_threads = 256, linear_width = 4;

/// A source for column_sums_kernel: the elements of a matrix.
template <class T>
struct Elements {
  static constexpr int width = 16 / sizeof(T);
  const T* x;

  __device__ void operator()(int64_t i, float* values) const { load_pack<width>(x, i, values); }
};

template <class A, class B>
__global__ void add_kernel(const A* a, const B* b, A* out, int64_t n) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= n / linear_width) return;
  float x[linear_width], y[linear_width];
  load_pack<linear_width>(a, i, x);
  load_pack<linear_width>(b, i, y);
  for (int k = 0; k < linear_width; ++k) x[k] += y[k];
  store_pack<linear_width>(out, i, x);
}

template <class A, class B>
__global__ void scale_kernel(const A* x, const float* factor, B* out, int64_t n) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= n / linear_width) return;
  float values[linear_width];
  load_pack<linear_width>(x, i, values);
  for (float& e : values) e *= *factor;
  store_pack<linear_width>(out, i, values);
}

int64_t blocks_of_elements(int64_t n) {
  return (n / linear_width + linear_threads - 1) / linear_threads;
}

}  // namespace

cudaError_t column_sums_cuda(Matrix x, int64_t rows, int64_t columns, float* partials, float* sums,
                             cudaStream_t stream) {
  if (!column_sums_on_gpu(columns)) return cudaErrorInvalidValue;
  const bool done = with_gpu_element(x.type, [&](auto element) {
    using T = decltype(element);
    launch_column_sums(Elements<T>{static_cast<const T*>(x.data)}, rows, columns, partials, sums,
                       stream);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t add_cuda(const void* a, Element a_type, const void* b, Element b_type, void* out,
                     int64_t n, cudaStream_t stream) {
  if (n % linear_width != 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  const bool done = with_gpu_elements(a_type, b_type, [&](auto left, auto right) {
    using A = decltype(left);
    using B = decltype(right);
    launch(add_kernel<A, B>, blocks_of_elements(n), linear_threads, stream,
           static_cast<const A*>(a), static_cast<const B*>(b), static_cast<A*>(out), n);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

cudaError_t scale_cuda(const void* x, Element type, const float* factor, void* out,
                       Element out_type, int64_t n, cudaStream_t stream) {
  if (n % linear_width != 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  const bool done = with_gpu_elements(type, out_type, [&](auto in, auto result) {
    using A = decltype(in);
    using B = decltype(result);
    launch(scale_kernel<A, B>, blocks_of_elements(n), linear_threads, stream,
           static_cast<const A*>(x), factor, static_cast<B*>(out), n);
  });
  return done ? cudaGetLastError() : cudaErrorInvalidValue;
}

}  // namespace lathe
