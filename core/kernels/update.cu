#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/kernels/launch.cuh"
#include "core/kernels/philox.cuh"
#include "core/kernels/rows.cuh"
#include "core/kernels/update.cuh"
#include "core/kernels/update_math.h"

namespace lathe {
namespace {

constexpr int threads = 256;
constexpr int64_t update_chunk = 1 << 14;  // number of elements that one block of threads updates

/// The work of one launch. Kernels take this table by value. The arguments of a kernel may have up
/// to 32,764 bytes (CUDA 12.1 and later).
template <class Item, int capacity>
struct Table {
  Item items[capacity];
  int first_block[capacity];  // index of the first block of threads of each item
  bool has_packs[capacity];   // whether the elements of each item can be loaded in packs of
                              // update_width
  int count = 0;
  int blocks = 0;

  bool full() const { return count == capacity; }
  void add(const Item& item, int64_t chunk) {
    items[count] = item;
    first_block[count++] = blocks;
    blocks += static_cast<int>((item.n + chunk - 1) / chunk);
  }
  /// Returns the index of the item that a block of threads works on.
  __device__ int item_of(int block) const {
    int i = count - 1;
    while (first_block[i] > block) --i;
    return i;
  }
};
using GradTable = Table<GradArgs, 128>;
using UpdateTable = Table<UpdateArgs, 160>;
static_assert(sizeof(UpdateTable) + sizeof(UpdateRule) + sizeof(StepControl*) <= 32764);

constexpr int update_width = 4;  // elements that a thread loads and stores together

template <int width, class S, class T>
__device__ void load_as(const S* data, int64_t i, T* out) {
  const auto pack = *reinterpret_cast<const Pack<S, width>*>(data + i);
  for (int k = 0; k < width; ++k) {
    if constexpr (std::is_floating_point_v<S>)
      out[k] = static_cast<T>(pack.at[k]);
    else
      out[k] = static_cast<T>(static_cast<float>(pack.at[k]));
  }
}
/// Loads elements [i, i + width) as T. If `data` is null, gives zeros. The address of element i
/// must be a multiple of the size of `width` elements.
template <int width, class T>
__device__ void load(const void* data, Element type, int64_t i, T* out) {
  if (data == nullptr) {
    for (int k = 0; k < width; ++k) out[k] = T(0);
    return;
  }
  switch (type) {
    case Element::f64: return load_as<width>(static_cast<const double*>(data), i, out);
    case Element::f32: return load_as<width>(static_cast<const float*>(data), i, out);
    case Element::bf16: return load_as<width>(static_cast<const __nv_bfloat16*>(data), i, out);
    case Element::f16: return load_as<width>(static_cast<const __half*>(data), i, out);
  }
}

template <class T>
__device__ void round_to(T x, double& y) {
  y = static_cast<double>(x);
}
template <class T>
__device__ void round_to(T x, float& y) {
  y = static_cast<float>(x);
}
template <class T>
__device__ void round_to(T x, __nv_bfloat16& y) {
  y = __float2bfloat16_rn(static_cast<float>(x));
}
template <class T>
__device__ void round_to(T x, __half& y) {
  y = __float2half_rn(static_cast<float>(x));
}

template <int width, class S, class T>
__device__ void store_as(S* data, int64_t i, const T* values) {
  Pack<S, width> pack;
  for (int k = 0; k < width; ++k) round_to(values[k], pack.at[k]);
  *reinterpret_cast<Pack<S, width>*>(data + i) = pack;
}
/// Rounds `values` to `type` and stores them as elements [i, i + width). The address of element i
/// must be aligned as load() requires.
template <int width, class T>
__device__ void store(void* data, Element type, int64_t i, const T* values) {
  switch (type) {
    case Element::f64: return store_as<width>(static_cast<double*>(data), i, values);
    case Element::f32: return store_as<width>(static_cast<float*>(data), i, values);
    case Element::bf16: return store_as<width>(static_cast<__nv_bfloat16*>(data), i, values);
    case Element::f16: return store_as<width>(static_cast<__half*>(data), i, values);
  }
}

/// Returns whether `data` is null or aligned for packs of update_width elements.
bool is_ready(const void* data, Element type) {
  return is_aligned(data, update_width * bytes_of(type));
}
bool has_packs(const GradArgs& g) { return is_ready(g.grad, g.type); }
/// Returns whether all tensors that an update reads and writes are aligned for packs.
bool has_packs(const UpdateArgs& a) {
  const Element own = state_type(a.param_type);
  return is_ready(a.param, a.param_type) && is_ready(a.grad, a.grad_type) &&
         is_ready(a.low, a.low_type) && is_ready(a.average, own) && is_ready(a.state[0], own) &&
         is_ready(a.state[1], own) && is_ready(a.state[2], own);
}

/// Returns the sum of x over a block of threads, in a fixed order. Only thread 0 gets the sum.
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

/// Returns this thread's part of the sum of squares of elements [begin, end). The elements of the
/// first `packs` packs of update_width elements are loaded in packs. The elements after these packs
/// are loaded one by one.
template <class T>
__device__ double squares(const void* data, int64_t begin, int64_t end, int64_t packs) {
  static_assert(update_width == 4);
  const T* x = static_cast<const T*>(data) + begin;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < packs; i += threads) {
    std::conditional_t<std::is_same_v<T, double>, double, float> v[update_width];
    load_as<update_width>(x, i * update_width, v);
    const double a = v[0], b = v[1], c = v[2], d = v[3];
    sum += (a * a + b * b) + (c * c + d * d);
  }
  for (int64_t i = packs * update_width + threadIdx.x; i < end - begin; i += threads) {
    double v = 0;
    load_as<1>(x, i, &v);
    sum += v * v;
  }
  return sum;
}

__global__ void grad_sum_kernel(GradTable table, double* partials) {
  const int which = table.item_of(static_cast<int>(blockIdx.x));
  const GradArgs& g = table.items[which];
  const int64_t begin = (static_cast<int>(blockIdx.x) - table.first_block[which]) * grad_sum_chunk;
  const int64_t end = begin + grad_sum_chunk < g.n ? begin + grad_sum_chunk : g.n;
  const int64_t packs = table.has_packs[which] ? (end - begin) / update_width : 0;
  double sum = 0;
  switch (g.type) {
    case Element::f64: sum = squares<double>(g.grad, begin, end, packs); break;
    case Element::f32: sum = squares<float>(g.grad, begin, end, packs); break;
    case Element::bf16: sum = squares<__nv_bfloat16>(g.grad, begin, end, packs); break;
    case Element::f16: sum = squares<__half>(g.grad, begin, end, packs); break;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// Returns the sum of n numbers, in a fixed order. Only thread 0 gets the sum.
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

/// The counts that a thread adds to StepControl::moved and StepControl::lost.
struct RoundingCounts {
  unsigned long long moved = 0, lost = 0;
};

/// Updates elements [i, i + width) in the same way as update-inl.h does on CPUs. The comments there
/// explain the steps.
template <int width, class Rule, class T>
__device__ void update_pack(const UpdateArgs& a, const UpdateRule& rule, const StepControl& control,
                            const Coefficients<T>& c, int64_t i, RoundingCounts& counts) {
  constexpr Element own = std::is_same_v<T, double> ? Element::f64 : Element::f32;
  const T clip_limit = static_cast<T>(rule.clip_value * control.loss_scale),
          weight = static_cast<T>(1 - rule.average_decay);
  const bool is_full_precision = a.param_type == Element::f32 || a.param_type == Element::f64;

  T before[width], g[width], state[3][width], after[width];
  load<width>(a.param, a.param_type, i, before);
  load<width>(a.grad, a.grad_type, i, g);
  for (int s = 0; s < 3; ++s) load<width>(a.state[s], own, i, state[s]);

  for (int k = 0; k < width; ++k) {
    if (!Rule::raw) {
      if (rule.clip_value > 0)
        g[k] = g[k] < -clip_limit ? -clip_limit : g[k] > clip_limit ? clip_limit : g[k];
      g[k] = g[k] * c.grad_scale + c.wd * before[k];
    }
    after[k] = Rule::element(before[k], g[k], state[0] + k, state[1] + k, state[2] + k, c);
  }

  for (int s = 0; s < 3; ++s) {
    if (a.state[s] != nullptr) store<width>(a.state[s], own, i, state[s]);
  }
  if (a.low != nullptr) store<width>(a.low, a.low_type, i, after);

  // CPUs and GPUs draw the same random bits for an element.
  if (a.stochastic) {
    for (int k = 0; k < width; ++k) {
      const int64_t place = a.first + i + k;
      const DevicePhilox words(static_cast<uint64_t>(place / 8),
                               static_cast<uint64_t>(control.updates), a.key);
      static_cast<uint16_t*>(a.param)[i + k] =
          round_stochastic(__float_as_uint(static_cast<float>(after[k])), random16(words, place));
    }
  } else {
    store<width>(a.param, a.param_type, i, after);
  }

  // The average follows the rounded parameter.
  T now[width];
  if (is_full_precision)
    for (int k = 0; k < width; ++k) now[k] = after[k];
  else
    load<width>(a.param, a.param_type, i, now);
  if (a.average != nullptr) {
    T average[width];
    load<width>(a.average, own, i, average);
    for (int k = 0; k < width; ++k)
      average[k] = control.updates == 1 ? now[k] : average[k] + weight * (now[k] - average[k]);
    store<width>(a.average, own, i, average);
  }

  for (int k = 0; k < width && !is_full_precision; ++k) {
    if (after[k] == before[k]) continue;
    ++counts.moved;
    counts.lost += now[k] == before[k];
  }
}

template <class Rule, class T>
__global__ void update_kernel(UpdateTable table, UpdateRule rule, StepControl* control) {
  // The host doesn't know whether the step is skipped, so the kernel checks whether to return.
  if (control->skip != 0) return;

  const int which = table.item_of(static_cast<int>(blockIdx.x));
  const UpdateArgs& a = table.items[which];
  const int64_t begin = (static_cast<int>(blockIdx.x) - table.first_block[which]) * update_chunk;
  const int64_t end = begin + update_chunk < a.n ? begin + update_chunk : a.n;
  const Coefficients<T> c = coefficients<Rule, T>(rule, a, *control);

  RoundingCounts counts;
  const int64_t packs = table.has_packs[which] ? (end - begin) / update_width : 0;
  for (int64_t i = threadIdx.x; i < packs; i += threads)
    update_pack<update_width, Rule>(a, rule, *control, c, begin + i * update_width, counts);
  for (int64_t i = begin + packs * update_width + threadIdx.x; i < end; i += threads)
    update_pack<1, Rule>(a, rule, *control, c, i, counts);

  // Roundings are counted only for low-precision parameters. For other parameters, skip the atomic
  // additions.
  if (counts.moved == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&control->moved), counts.moved);
  atomicAdd(reinterpret_cast<unsigned long long*>(&control->lost), counts.lost);
}

}  // namespace

cudaError_t grad_sum_cuda(const GradArgs* grads, int64_t count, double* partials,
                          cudaStream_t stream) {
  for (int64_t i = 0; i < count;) {
    GradTable table;
    for (; i < count && !table.full(); ++i) {
      if (grads[i].n == 0) continue;
      table.has_packs[table.count] = has_packs(grads[i]);
      table.add(grads[i], grad_sum_chunk);
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
    const bool wide = args[i].param_type == Element::f64;  // a launch computes either in float64 or
                                                           // in float32
    for (; i < count && !table.full() && (args[i].param_type == Element::f64) == wide; ++i) {
      if (args[i].n == 0) continue;
      table.has_packs[table.count] = has_packs(args[i]);
      table.add(args[i], update_chunk);
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
