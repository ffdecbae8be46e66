// Defines the parts of a parameter update other than its formula: reading, clipping by value,
// rounding, the working copy and the average. The parts are plain loops, which are compiled once
// for each instruction set. Include this file after hwy/foreach_target.h and hwy/highway.h.
#if defined(LATHE_CORE_KERNELS_UPDATE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_CORE_KERNELS_UPDATE_INL_H
#undef LATHE_CORE_KERNELS_UPDATE_INL_H
#else
#define LATHE_CORE_KERNELS_UPDATE_INL_H
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "core/kernels/update_math.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {
namespace {

// The number of elements that are converted together. They take a few kilobytes and stay in the
// nearest cache.
constexpr int64_t update_block = 512;

inline uint16_t bf16_nearest(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(x == x ? rounded : 0x7fc0u);
}

/// Returns elements [begin, begin + n) of `data` as T. If they have the type T, they are used in
/// place; otherwise, they are converted into `buffer`. If `data` is null, returns zeros in
/// `buffer`.
template <class T>
HWY_NOINLINE const T* load(const void* data, Element type, int64_t begin, int64_t n, T* buffer) {
  if (data == nullptr) {
    std::fill_n(buffer, n, T(0));
    return buffer;
  }

  // Convert only if the type differs from T.
  switch (type) {
    case Element::f64:
      if constexpr (std::is_same_v<T, double>) return static_cast<const double*>(data) + begin;
      for (int64_t i = 0; i < n; ++i)
        buffer[i] = static_cast<T>(static_cast<const double*>(data)[begin + i]);
      return buffer;
    case Element::f32:
      if constexpr (std::is_same_v<T, float>) return static_cast<const float*>(data) + begin;
      for (int64_t i = 0; i < n; ++i)
        buffer[i] = static_cast<T>(static_cast<const float*>(data)[begin + i]);
      return buffer;

    // A bfloat16 is the upper half of a float32.
    case Element::bf16:
      for (int64_t i = 0; i < n; ++i) {
        buffer[i] = static_cast<T>(std::bit_cast<float>(
            static_cast<uint32_t>(static_cast<const uint16_t*>(data)[begin + i]) << 16));
      }
      return buffer;

    case Element::f16:
      for (int64_t i = 0; i < n; ++i) {
        buffer[i] =
            static_cast<T>(static_cast<float>(static_cast<const c10::Half*>(data)[begin + i]));
      }
      return buffer;
  }
  return buffer;
}

/// Returns elements of a gradient, which still includes the loss scale. Each element is clamped by
/// clip_value.
template <class T>
HWY_NOINLINE const T* load_gradient(const UpdateArgs& a, const UpdateRule& rule,
                                    const StepControl& control, int64_t begin, int64_t n,
                                    T* buffer) {
  const T* g = load(a.grad, a.grad_type, begin, n, buffer);
  if (!(rule.clip_value > 0)) return g;
  const T most = static_cast<T>(rule.clip_value * control.loss_scale);
  for (int64_t i = 0; i < n; ++i) buffer[i] = std::min(std::max(g[i], -most), most);
  return buffer;
}

template <class T>
void store_nearest(void* data, Element type, int64_t begin, int64_t n, const T* x) {
  if (type == Element::bf16) {
    for (int64_t i = 0; i < n; ++i)
      static_cast<uint16_t*>(data)[begin + i] = bf16_nearest(static_cast<float>(x[i]));
  } else if (type == Element::f16) {
    for (int64_t i = 0; i < n; ++i) {
      static_cast<c10::Half*>(data)[begin + i] = c10::Half(static_cast<float>(x[i]));
    }
  }
}

/// Stores elements [begin, begin + n) of a bfloat16 parameter with stochastic rounding.
inline void store_stochastic(const UpdateArgs& a, int64_t begin, int64_t n, const float* x,
                             uint64_t step) {
  Philox4 words{};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t place = a.first + begin + i;
    if (place % 8 == 0 || i == 0)
      words = philox(counter(static_cast<uint64_t>(place / 8), step), a.key);
    static_cast<uint16_t*>(a.param)[begin + i] =
        round_stochastic(std::bit_cast<uint32_t>(x[i]), random16(words, place));
  }
}

/// Counts elements of a low-precision parameter. `moved` is the number of elements whose update is
/// not zero. `lost` is the number of those elements that rounding left unchanged.
struct Roundings {
  uint64_t moved = 0, lost = 0;
};

/// Rounds and stores `out`, which holds new values for a block of a parameter's elements. Also
/// stores the working copy and the average of these elements. `before` holds the previous values of
/// a low-precision parameter.
template <class T>
HWY_NOINLINE void store_block(const UpdateArgs& a, const UpdateRule& rule,
                              const StepControl& control, int64_t at, int64_t n, const T* before,
                              const T* out, Roundings* count) {
  if (a.low != nullptr) store_nearest(a.low, a.low_type, at, n, out);

  // The average of a low-precision parameter follows the rounded values.
  const T* now = out;
  T stored[update_block];
  if constexpr (std::is_same_v<T, float>) {
    if (a.param_type != Element::f32) {
      if (a.stochastic)
        store_stochastic(a, at, n, out, static_cast<uint64_t>(control.updates));
      else
        store_nearest(a.param, a.param_type, at, n, out);
      now = load(a.param, a.param_type, at, n, stored);
      for (int64_t i = 0; i < n; ++i) {
        count->moved += out[i] != before[i];
        count->lost += out[i] != before[i] && now[i] == before[i];
      }
    }
  }

  if (a.average == nullptr) return;
  T* average = static_cast<T*>(a.average) + at;
  const T weight = static_cast<T>(1 - rule.average_decay);
  if (control.updates == 1)
    std::copy_n(now, n, average);
  else
    for (int64_t i = 0; i < n; ++i) average[i] += weight * (now[i] - average[i]);
}

/// Calls f(at, n, p, out) for each block of n elements of [begin, end). `at` is the index of the
/// block's first element, and p holds the block's elements of the parameter. f writes their new
/// values to `out`. These values are then stored.
template <class T, class F>
void update_blocks(const UpdateArgs& a, const UpdateRule& rule, StepControl* control, int64_t begin,
                   int64_t end, F&& f) {
  const bool whole = a.param_type == Element::f32 || a.param_type == Element::f64;
  T before[update_block], after[update_block];
  Roundings count;
  for (int64_t at = begin; at < end; at += update_block) {
    const int64_t n = std::min(update_block, end - at);
    const T* p = load(a.param, a.param_type, at, n, before);
    T* out = whole ? static_cast<T*>(a.param) + at : after;
    f(at, n, p, out);
    store_block(a, rule, *control, at, n, before, out, &count);
  }
  if (count.moved == 0) return;
  std::atomic_ref(control->moved).fetch_add(count.moved, std::memory_order_relaxed);
  std::atomic_ref(control->lost).fetch_add(count.lost, std::memory_order_relaxed);
}

/// Updates one element by a rule. If weight decay is not decoupled, first adds the weight decay to
/// the gradient.
template <class Rule, class T>
inline T update_element(T p, T g, T* s0, T* s1, T* s2, const Coefficients<T>& c) {
  if constexpr (!Rule::raw) g = g * c.grad_scale + c.wd * p;
  return Rule::element(p, g, s0, s1, s2, c);
}

template <class Rule, class T>
void rule_block(const T* p, const T* g, T* out, T* s0, T* s1, T* s2, int64_t n,
                const Coefficients<T>& c) {
#ifndef __clang__
#pragma GCC ivdep  // `out` may be p, but no element depends on another element
#endif
  for (int64_t i = 0; i < n; ++i)
    out[i] = update_element<Rule>(p[i], g[i], s0 + i, s1 + i, s2 + i, c);
}

/// Updates elements [begin, end) of a parameter by a rule.
template <class Rule, class T>
void update_by_rule(const UpdateArgs& a, const UpdateRule& rule, StepControl* control,
                    int64_t begin, int64_t end) {
  const Coefficients<T> c = coefficients<Rule, T>(rule, a, *control);
  T grads[update_block], absent[update_block] = {};  // `absent` stands for states that the rule
                                                     // does not have
  const auto state = [&](int i, int64_t at) {
    return a.state[i] == nullptr ? absent : static_cast<T*>(a.state[i]) + at;
  };
  update_blocks<T>(a, rule, control, begin, end, [&](int64_t at, int64_t n, const T* p, T* out) {
    const T* g = Rule::raw ? load(a.grad, a.grad_type, at, n, grads)
                           : load_gradient(a, rule, *control, at, n, grads);
    rule_block<Rule>(p, g, out, state(0, at), state(1, at), state(2, at), n, c);
  });
}

/// Returns the sum of f(i) for i in [0, n). Computes 16 independent sums, so that the compiler can
/// vectorize the loop, and then adds these sums. The order of the additions is fixed.
template <class F>
double lane_sum(int64_t n, F&& f) {
  constexpr int64_t lanes = 16;
  double sum[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t j = 0; j < lanes; ++j) sum[j] += f(i + j);
  }
  for (; i < n; ++i) sum[i % lanes] += f(i);
  double total = 0;
  for (double s : sum) total += s;
  return total;
}

}  // namespace
}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
