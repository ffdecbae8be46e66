#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace {

constexpr int threads = 256;

template <class T>
__global__ void forward(const T* x, T* y, int64_t n, T a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= n) return;
  const T s = sin(a * x[i]);
  y[i] = x[i] + s * s / a;
}
template <class T>
__global__ void backward(const T* x, const T* dy, T* dx, int64_t n, T a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < n) dx[i] = dy[i] * (1 + sin(2 * a * x[i]));
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + threads - 1) / threads); }
void check() {
  if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess)
    throw std::runtime_error(std::string("snake: ") + cudaGetErrorString(e));
}

template <class T>
void run(const T* x, T* y, int64_t n, double a) {
  if (n > 0) forward<<<blocks(n), threads>>>(x, y, n, static_cast<T>(a));
  check();
}
template <class T>
void run_backward(const T* x, const T* dy, T* dx, int64_t n, double a) {
  if (n > 0) backward<<<blocks(n), threads>>>(x, dy, dx, n, static_cast<T>(a));
  check();
}

}  // namespace

void snake_cuda(const float* x, float* y, int64_t n, double a) { run(x, y, n, a); }
void snake_cuda(const double* x, double* y, int64_t n, double a) { run(x, y, n, a); }
void snake_backward_cuda(const float* x, const float* dy, float* dx, int64_t n, double a) {
  run_backward(x, dy, dx, n, a);
}
void snake_backward_cuda(const double* x, const double* dy, double* dx, int64_t n, double a) {
  run_backward(x, dy, dx, n, a);
}
