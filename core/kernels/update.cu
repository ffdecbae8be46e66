#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/kernels/philox.cuh"
#include "core/kernels/update.cuh"
#include "core/kernels/update_math.h"

namespace lathe {
namespace {

constexpr int threads = 256;

template <class T>
__device__ T load(const void* data, Element type, int64_t i) {
  switch (type) {
    case Element::f64: return static_cast<T>(static_cast<const double*>(data)[i]);
    case Element::f32: return static_cast<T>(static_cast<const float*>(data)[i]);
    case Element::bf16: return static_cast<T>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]));
    case Element::f16: return static_cast<T>(__half2float(static_cast<const __half*>(data)[i]));
  }
  return T(0);
}

template <class T>
__device__ void store(void* data, Element type, int64_t i, T x) {
  switch (type) {
    case Element::f64: static_cast<double*>(data)[i] = static_cast<double>(x); return;
    case Element::f32: static_cast<float*>(data)[i] = static_cast<float>(x); return;
    case Element::bf16: static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(static_cast<float>(x)); return;
    case Element::f16: static_cast<__half*>(data)[i] = __float2half_rn(static_cast<float>(x)); return;
  }
}

/// The sum over a block, in an order that is always the same; right in thread 0.
__device__ double block_sum(double x) {
  __shared__ double sums[threads];
  sums[threadIdx.x] = x;
  __syncthreads();
  for (int half = threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

__global__ void grad_sum_kernel(const void* grad, Element type, int64_t n, double* partials) {
  const int64_t begin = blockIdx.x * grad_sum_chunk;
  const int64_t end = begin + grad_sum_chunk < n ? begin + grad_sum_chunk : n;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += threads) {
    const double g = load<double>(grad, type, i);
    sum += g * g;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void decide_kernel(StepRequest request, const double* partials, int64_t n, const float* loss,
                              StepControl* control, ScaleState* scale) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += threads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) settle(request, sum, loss, *control, scale);
}

template <UpdateKind K, class T>
__global__ void update_kernel(UpdateArgs a, UpdateRule rule, StepControl* control) {
  if (control->skip != 0) return;
  const Coefficients<T> c(rule, a.weight_decay, *control);
  const bool whole = a.param_type == Element::f32 || a.param_type == Element::f64;
  const auto state = [&](int s, int64_t i) {
    return a.state[s] == nullptr ? nullptr : static_cast<T*>(a.state[s]) + i;
  };
  unsigned long long moved = 0, lost = 0;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(threads) + threadIdx.x; i < a.n;
       i += static_cast<int64_t>(gridDim.x) * threads) {
    const T before = load<T>(a.param, a.param_type, i);
    const T after =
        update_element<K>(before, load<T>(a.grad, a.grad_type, i), state(0, i), state(1, i), state(2, i), c);
    if (a.stochastic) {
      const DevicePhilox words(static_cast<uint64_t>(i / 8), static_cast<uint64_t>(control->updates), a.key);
      static_cast<uint16_t*>(a.param)[i] =
          round_stochastic(__float_as_uint(static_cast<float>(after)), random16(words, i));
    } else {
      store(a.param, a.param_type, i, after);
    }
    if (a.low != nullptr) store(a.low, a.low_type, i, after);
    if (whole || after == before) continue;
    ++moved;
    lost += load<T>(a.param, a.param_type, i) == before;
  }
  if (moved == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&control->moved), moved);
  atomicAdd(reinterpret_cast<unsigned long long*>(&control->lost), lost);
}

}  // namespace

cudaError_t grad_sum_cuda(const void* grad, Element type, int64_t n, double* partials, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((n + grad_sum_chunk - 1) / grad_sum_chunk);
  if (blocks > 0) grad_sum_kernel<<<blocks, threads, 0, stream>>>(grad, type, n, partials);
  return cudaGetLastError();
}

cudaError_t decide_cuda(const StepRequest& request, const double* partials, int64_t n, const float* loss,
                        StepControl* control, ScaleState* scale, cudaStream_t stream) {
  decide_kernel<<<1, threads, 0, stream>>>(request, partials, n, loss, control, scale);
  return cudaGetLastError();
}

cudaError_t update_cuda(const UpdateArgs& args, const UpdateRule& rule, StepControl* control, cudaStream_t stream) {
  if (args.n == 0) return cudaSuccess;
  const int64_t wanted = (args.n + threads - 1) / threads;
  const auto grid = static_cast<unsigned>(wanted < 4096 ? wanted : 4096);
  const auto launch = [&](auto kind_constant) {
    constexpr UpdateKind K = decltype(kind_constant)::value;
    if (args.param_type == Element::f64)
      update_kernel<K, double><<<grid, threads, 0, stream>>>(args, rule, control);
    else
      update_kernel<K, float><<<grid, threads, 0, stream>>>(args, rule, control);
  };
  with_kind(rule.kind, launch);
  return cudaGetLastError();
}

}  // namespace lathe
