#include "core/kernels/update.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "core/kernels/update_math.h"

// Plain loops, compiled once for each instruction set; the compiler turns them into vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/update.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {
namespace {

constexpr int64_t block = 512;  // elements converted at a time: a few kilobytes, so they stay in the nearest cache

uint16_t bf16_nearest(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(x == x ? rounded : 0x7fc0u);
}

/// Elements as T, in place where they are of that type already, else converted into `buffer`.
template <class T>
const T* load(const void* data, Element type, int64_t begin, int64_t n, T* buffer) {
  switch (type) {
    case Element::f64:
      if constexpr (std::is_same_v<T, double>) return static_cast<const double*>(data) + begin;
      for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<T>(static_cast<const double*>(data)[begin + i]);
      return buffer;
    case Element::f32:
      if constexpr (std::is_same_v<T, float>) return static_cast<const float*>(data) + begin;
      for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<T>(static_cast<const float*>(data)[begin + i]);
      return buffer;
    case Element::bf16:
      for (int64_t i = 0; i < n; ++i) {
        buffer[i] = static_cast<T>(
            std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[begin + i]) << 16));
      }
      return buffer;
    case Element::f16:
      for (int64_t i = 0; i < n; ++i) {
        buffer[i] = static_cast<T>(static_cast<float>(static_cast<const c10::Half*>(data)[begin + i]));
      }
      return buffer;
  }
  return buffer;
}

template <class T>
void store_nearest(void* data, Element type, int64_t begin, int64_t n, const T* x) {
  if (type == Element::bf16) {
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(data)[begin + i] = bf16_nearest(static_cast<float>(x[i]));
  } else if (type == Element::f16) {
    for (int64_t i = 0; i < n; ++i) {
      static_cast<c10::Half*>(data)[begin + i] = c10::Half(static_cast<float>(x[i]));
    }
  }
}

void store_stochastic(void* data, int64_t begin, int64_t n, const float* x, RngKey key, uint64_t step) {
  Philox4 words{};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t place = begin + i;
    if (place % 8 == 0 || i == 0) words = philox(counter(static_cast<uint64_t>(place / 8), step), key);
    static_cast<uint16_t*>(data)[place] = round_stochastic(std::bit_cast<uint32_t>(x[i]), random16(words, place));
  }
}

template <UpdateKind K, class T>
void update_block(const T* p, const T* g, T* out, T* s0, T* s1, T* s2, int64_t n, const Coefficients<T>& c) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = update_element<K>(p[i], g[i], s0 == nullptr ? nullptr : s0 + i, s1 == nullptr ? nullptr : s1 + i,
                               s2 == nullptr ? nullptr : s2 + i, c);
  }
}

template <UpdateKind K, class T>
void run(const UpdateArgs& a, const UpdateRule& rule, StepControl* control, int64_t begin, int64_t end) {
  const Coefficients<T> c(rule, a.weight_decay, *control);
  const bool whole = a.param_type == Element::f32 || a.param_type == Element::f64;
  T grads[block], before[block], after[block];
  uint64_t moved = 0, lost = 0;
  for (int64_t at = begin; at < end; at += block) {
    const int64_t n = std::min(block, end - at);
    const T* g = load(a.grad, a.grad_type, at, n, grads);
    const T* p = load(a.param, a.param_type, at, n, before);
    T* out = whole ? static_cast<T*>(a.param) + at : after;
    const auto state = [&](int i) { return a.state[i] == nullptr ? nullptr : static_cast<T*>(a.state[i]) + at; };
    update_block<K>(p, g, out, state(0), state(1), state(2), n, c);
    if (a.low != nullptr) store_nearest(a.low, a.low_type, at, n, out);
    if constexpr (std::is_same_v<T, float>) {
      if (whole) continue;
      if (a.stochastic)
        store_stochastic(a.param, at, n, out, a.key, static_cast<uint64_t>(control->updates));
      else
        store_nearest(a.param, a.param_type, at, n, out);
      const T* now = load(a.param, a.param_type, at, n, grads);
      for (int64_t i = 0; i < n; ++i) {
        moved += out[i] != before[i];
        lost += out[i] != before[i] && now[i] == before[i];
      }
    }
  }
  if (moved == 0) return;
  std::atomic_ref(control->moved).fetch_add(moved, std::memory_order_relaxed);
  std::atomic_ref(control->lost).fetch_add(lost, std::memory_order_relaxed);
}

}  // namespace

double grad_sum_range(const void* grad, Element type, int64_t begin, int64_t end) {
  constexpr int64_t lanes = 16;  // sums side by side, so that the compiler may use vectors
  double sum[lanes] = {};
  const auto add = [&](const auto* g, int64_t n, auto value) {
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      for (int64_t j = 0; j < lanes; ++j) {
        const double x = value(g[i + j]);
        sum[j] += x * x;
      }
    }
    for (; i < n; ++i) sum[i % lanes] += value(g[i]) * value(g[i]);
  };
  switch (type) {
    case Element::f64: add(static_cast<const double*>(grad) + begin, end - begin, [](double x) { return x; }); break;
    case Element::f32:
      add(static_cast<const float*>(grad) + begin, end - begin, [](float x) { return static_cast<double>(x); });
      break;
    case Element::bf16:
      add(static_cast<const uint16_t*>(grad) + begin, end - begin,
          [](uint16_t x) { return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(x) << 16)); });
      break;
    case Element::f16:
      add(static_cast<const c10::Half*>(grad) + begin, end - begin,
          [](c10::Half x) { return static_cast<double>(static_cast<float>(x)); });
      break;
  }
  double total = 0;
  for (double s : sum) total += s;
  return total;
}

void update_range(const UpdateArgs& args, const UpdateRule& rule, StepControl* control, int64_t begin, int64_t end) {
  with_kind(rule.kind, [&](auto kind) {
    constexpr UpdateKind K = decltype(kind)::value;
    if (args.param_type == Element::f64)
      run<K, double>(args, rule, control, begin, end);
    else
      run<K, float>(args, rule, control, begin, end);
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(grad_sum_range);
HWY_EXPORT(update_range);

double grad_sum_cpu(const void* grad, Element type, int64_t begin, int64_t end) {
  return HWY_DYNAMIC_DISPATCH(grad_sum_range)(grad, type, begin, end);
}

void decide_cpu(const StepRequest& request, const double* partials, int64_t n, const float* loss, StepControl* control,
                ScaleState* scale) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += partials[i];
  settle(request, sum, loss, *control, scale);
}

void update_cpu(const UpdateArgs& args, const UpdateRule& rule, StepControl* control, int64_t begin, int64_t end) {
  if (control->skip == 0) HWY_DYNAMIC_DISPATCH(update_range)(args, rule, control, begin, end);
}

}  // namespace lathe
#endif
