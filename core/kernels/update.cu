#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/kernels/launch.cuh"
#include "core/kernels/philox.cuh"
#include "core/kernels/update.cuh"
#include "core/kernels/update_math.h"

namespace lathe {
namespace {

constexpr int threads = 256;
constexpr int64_t update_chunk = 1 << 12;  // elements that one block updates

/// The work of one launch. Kernels take it by value, and 4 KB is the limit for arguments on every
/// GPU.
template <class Item, int most>
struct Table {
  Item items[most];
  int first_block[most];  // the block that begins each item
  int count = 0;
  int blocks = 0;

  bool full() const { return count == most; }
  void add(const Item& item, int64_t chunk) {
    items[count] = item;
    first_block[count++] = blocks;
    blocks += static_cast<int>((item.n + chunk - 1) / chunk);
  }
  /// Returns the item that a block works on.
  __device__ int item_of(int block) const {
    int i = count - 1;
    while (first_block[i] > block) --i;
    return i;
  }
};
using GradTable = Table<GradArgs, 128>;
using UpdateTable = Table<UpdateArgs, 24>;
static_assert(sizeof(GradTable) <= 4000 && sizeof(UpdateTable) <= 4000 - sizeof(UpdateRule));

template <class T>
__device__ T load(const void* data, Element type, int64_t i) {
  if (data == nullptr) return T(0);
  switch (type) {
    case Element::f64: return static_cast<T>(static_cast<const double*>(data)[i]);
    case Element::f32: return static_cast<T>(static_cast<const float*>(data)[i]);
    case Element::bf16:
      return static_cast<T>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]));
    case Element::f16: return static_cast<T>(__half2float(static_cast<const __half*>(data)[i]));
  }
  return T(0);
}

template <class T>
__device__ void store(void* data, Element type, int64_t i, T x) {
  switch (type) {
    case Element::f64: static_cast<double*>(data)[i] = static_cast<double>(x); return;
    case Element::f32: static_cast<float*>(data)[i] = static_cast<float>(x); return;
    case Element::bf16:
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(static_cast<float>(x));
      return;
    case Element::f16:
      static_cast<__half*>(data)[i] = __float2half_rn(static_cast<float>(x));
      return;
  }
}

/// Returns the sum over a block, in an order that is always the same; valid in thread 0.
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

__global__ void grad_sum_kernel(GradTable table, double* partials) {
  const int which = table.item_of(static_cast<int>(blockIdx.x));
  const GradArgs& g = table.items[which];
  const int64_t begin = (static_cast<int>(blockIdx.x) - table.first_block[which]) * grad_sum_chunk;
  const int64_t end = begin + grad_sum_chunk < g.n ? begin + grad_sum_chunk : g.n;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += threads) {
    const double x = load<double>(g.grad, g.type, i);
    sum += x * x;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// Returns the sum of n numbers, in an order that is always the same; valid in thread 0.
__device__ double total_of(const double* partials, int64_t n) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += threads) sum += partials[i];
  return block_sum(sum);
}

__global__ void decide_kernel(StepRequest request, const double* partials, int64_t n,
                              const float* loss, StepControl* control, ScaleState* scale) {
  const double sum = total_of(partials, n);
  if (threadIdx.x == 0) settle(request, sum, loss, *control, scale);
}

__global__ void decide_gradient_kernel(const double* partials, int64_t n, StepControl* control) {
  const double sum = total_of(partials, n);
  if (threadIdx.x == 0) settle_gradient(sum, *control);
}

__global__ void end_stages_kernel(int64_t step, const double* partials, int64_t n,
                                  const float* loss, StepControl* control) {
  const double sum = total_of(partials, n);
  if (threadIdx.x == 0) settle_stages(step, sum, loss, *control);
}

template <class Rule, class T>
__global__ void update_kernel(UpdateTable table, UpdateRule rule, StepControl* control) {
  // The host can't know whether the step is skipped, so the kernel checks.
  if (control->skip != 0) return;

  const int which = table.item_of(static_cast<int>(blockIdx.x));
  const UpdateArgs& a = table.items[which];
  const int64_t begin = (static_cast<int>(blockIdx.x) - table.first_block[which]) * update_chunk;
  const int64_t end = begin + update_chunk < a.n ? begin + update_chunk : a.n;

  // As in update-inl.h, whose comments give the reasons.
  const Coefficients<T> c = coefficients<Rule, T>(rule, a, *control);
  const T most = static_cast<T>(rule.clip_value * control->loss_scale),
          weight = static_cast<T>(1 - rule.average_decay);
  const bool whole = a.param_type == Element::f32 || a.param_type == Element::f64;
  T absent = 0;  // for a state that the rule does not have
  const auto state = [&](int s, int64_t i) {
    return a.state[s] == nullptr ? &absent : static_cast<T*>(a.state[s]) + i;
  };

  unsigned long long moved = 0, lost = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += threads) {
    const T before = load<T>(a.param, a.param_type, i);
    T g = load<T>(a.grad, a.grad_type, i);
    if (!Rule::raw) {
      if (rule.clip_value > 0) g = g < -most ? -most : g > most ? most : g;
      g = g * c.grad_scale + c.wd * before;
    }

    const T after = Rule::element(before, g, state(0, i), state(1, i), state(2, i), c);
    // Both devices draw the same random bits for an element.
    if (a.stochastic) {
      const int64_t place = a.first + i;
      const DevicePhilox words(static_cast<uint64_t>(place / 8),
                               static_cast<uint64_t>(control->updates), a.key);
      static_cast<uint16_t*>(a.param)[i] =
          round_stochastic(__float_as_uint(static_cast<float>(after)), random16(words, place));
    } else {
      store(a.param, a.param_type, i, after);
    }

    if (a.low != nullptr) store(a.low, a.low_type, i, after);
    // The average follows the rounded parameter.
    const T now = whole ? after : load<T>(a.param, a.param_type, i);
    if (a.average != nullptr) {
      T& average = static_cast<T*>(a.average)[i];
      average = control->updates == 1 ? now : average + weight * (now - average);
    }

    if (whole || after == before) continue;
    ++moved;
    lost += now == before;
  }

  // Only low-precision parameters count roundings; others skip the atomics.
  if (moved == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&control->moved), moved);
  atomicAdd(reinterpret_cast<unsigned long long*>(&control->lost), lost);
}

}  // namespace

cudaError_t grad_sum_cuda(const GradArgs* grads, int64_t count, double* partials,
                          cudaStream_t stream) {
  for (int64_t i = 0; i < count;) {
    GradTable table;
    for (; i < count && !table.full(); ++i) {
      if (grads[i].n > 0) table.add(grads[i], grad_sum_chunk);
    }
    if (table.blocks > 0) launch(grad_sum_kernel, table.blocks, threads, stream, table, partials);
    partials += table.blocks;
  }
  return cudaGetLastError();
}

cudaError_t decide_cuda(const StepRequest& request, const double* partials, int64_t n,
                        const float* loss, StepControl* control, ScaleState* scale,
                        cudaStream_t stream) {
  launch(decide_kernel, 1, threads, stream, request, partials, n, loss, control, scale);
  return cudaGetLastError();
}

cudaError_t decide_gradient_cuda(const double* partials, int64_t n, StepControl* control,
                                 cudaStream_t stream) {
  launch(decide_gradient_kernel, 1, threads, stream, partials, n, control);
  return cudaGetLastError();
}

cudaError_t end_stages_cuda(int64_t step, const double* partials, int64_t n, const float* loss,
                            StepControl* control, cudaStream_t stream) {
  launch(end_stages_kernel, 1, threads, stream, step, partials, n, loss, control);
  return cudaGetLastError();
}

cudaError_t update_cuda(const UpdateArgs* args, int64_t count, const UpdateRule& rule,
                        StepControl* control, cudaStream_t stream) {
  for (int64_t i = 0; i < count;) {
    UpdateTable table;
    const bool wide = args[i].param_type == Element::f64;  // one type of arithmetic for a launch
    for (; i < count && !table.full() && (args[i].param_type == Element::f64) == wide; ++i) {
      if (args[i].n > 0) table.add(args[i], update_chunk);
    }
    if (table.blocks == 0) continue;
    with_rule(rule.kind, [&](auto r) {
      using Rule = decltype(r);
      launch(wide ? update_kernel<Rule, double> : update_kernel<Rule, float>, table.blocks, threads,
             stream, table, rule, control);
    });
  }
  return cudaGetLastError();
}

}  // namespace lathe
