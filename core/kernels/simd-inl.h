// Defines the kernels' vector helpers. They are compiled once for each instruction set, so include
// this file after hwy/foreach_target.h. Elements are float32, bfloat16 or float16; arithmetic is in
// float32. Highway chooses the instruction set at run time.
//
// This file implements exp_of(), because Highway's exp() does not return NaN for NaN. A number
// instead of NaN would hide that a run has diverged.
#if defined(LATHE_CORE_KERNELS_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_CORE_KERNELS_SIMD_INL_H
#undef LATHE_CORE_KERNELS_SIMD_INL_H
#else
#define LATHE_CORE_KERNELS_SIMD_INL_H
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/kernels/element.h"
#include "core/kernels/isa.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(D())); }

HWY_INLINE V load(const float* p) { return hn::LoadU(D(), p); }
HWY_INLINE V load(const c10::BFloat16* p) {
  const hn::Rebind<uint16_t, D> half;
  const auto bits = hn::PromoteTo(DU(), hn::LoadU(half, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(D(), hn::ShiftLeft<16>(bits));
}
HWY_INLINE void store(V v, float* p) { hn::StoreU(v, D(), p); }
#if HWY_TARGET == HWY_AVX3
/// Rounds to bfloat16 with the instruction that CPUs with Isa::avx512_bf16 have. The instruction
/// treats subnormal numbers as zero.
HWY_INLINE __m256i rounded_by_cpu(V v) {
  __m256i low;
  // Highway 1.0 has no function for this instruction.
  asm("vcvtneps2bf16 %1, %0" : "=v"(low) : "v"(v.raw));
  return low;
}
#endif
/// Stores the nearest bfloat16 numbers; ties round to even. NaN stays NaN. CPUs that have an
/// instruction for this conversion (Isa::avx512_bf16) treat absolute values below 1.2e-38 as zero.
HWY_INLINE void store(V v, c10::BFloat16* p) {
#if HWY_TARGET == HWY_AVX3
  if (HWY_LIKELY(active_isa() >= Isa::avx512_bf16)) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded_by_cpu(v));
    return;
  }
#endif
  const DU du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
  const auto kept = hn::IfThenElse(hn::RebindMask(du, hn::Eq(v, v)), rounded, hn::Set(du, 0x7fc0u));
  const hn::Rebind<uint16_t, D> half;
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<D>(), kept)), half,
             reinterpret_cast<uint16_t*>(p));
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_INLINE V load(const c10::Half* p) {
  const hn::Rebind<hwy::float16_t, D> half;
  return hn::PromoteTo(D(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
}
/// Stores the nearest float16 numbers; ties round to even. Numbers beyond the largest float16
/// become infinity.
HWY_INLINE void store(V v, c10::Half* p) {
  const hn::Rebind<hwy::float16_t, D> half;
  hn::StoreU(hn::DemoteTo(half, v), half, reinterpret_cast<hwy::float16_t*>(p));
}
#else  // for these targets, Highway's conversion rounds towards zero
HWY_INLINE V load(const c10::Half* p) {
  float lane[HWY_MAX_BYTES / sizeof(float)];
  for (int64_t i = 0; i < lanes(); ++i) lane[i] = static_cast<float>(p[i]);
  return load(lane);
}
HWY_INLINE void store(V v, c10::Half* p) {
  float lane[HWY_MAX_BYTES / sizeof(float)];
  store(v, lane);
  for (int64_t i = 0; i < lanes(); ++i) p[i] = static_cast<c10::Half>(lane[i]);
}
#endif

/// Loads the first n lanes, where n < lanes(). The other lanes are zero.
template <class T>
HWY_INLINE V load_first(const T* p, int64_t n) {
  T buffer[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
  return load(buffer);
}
template <class T>
HWY_INLINE void store_first(V v, T* p, int64_t n) {
  T buffer[HWY_MAX_BYTES / sizeof(float)];
  store(v, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
}

/// for_vectors() calls f(i, part) for each vector of [0, n), where i is the index of the vector's
/// first element. part(p) loads a vector from p, and part(v, p) stores v to p. For a complete
/// vector, `part` is a Whole. For an incomplete last vector, `part` is a Part, which skips the
/// lanes beyond n. part.keep(v) sets these lanes of v to zero, and part.keep_or(v, w) replaces them
/// by the lanes of w.
struct Whole {
  HWY_INLINE V keep(V v) const { return v; }
  HWY_INLINE V keep_or(V v, V) const { return v; }
  template <class T>
  HWY_INLINE V operator()(const T* p) const {
    return load(p);
  }
  template <class T>
  HWY_INLINE void operator()(V v, T* p) const {
    store(v, p);
  }
};
struct Part {
  int64_t n;
  HWY_INLINE V keep(V v) const {
    return hn::IfThenElseZero(hn::FirstN(D(), static_cast<size_t>(n)), v);
  }
  HWY_INLINE V keep_or(V v, V w) const {
    return hn::IfThenElse(hn::FirstN(D(), static_cast<size_t>(n)), v, w);
  }
  template <class T>
  HWY_INLINE V operator()(const T* p) const {
    return load_first(p, n);
  }
  template <class T>
  HWY_INLINE void operator()(V v, T* p) const {
    store_first(v, p, n);
  }
};
template <class F>
HWY_INLINE void for_vectors(int64_t n, F&& f) {
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + step <= n; i += step) f(i, Whole());
  if (i < n) f(i, Part{n - i});
}

/// Calls f with a zero of the C++ type of `a`, which must not be float64.
template <class F>
void with_element(Element a, F&& f) {
  if (a == Element::f32) return f(float{});
  return a == Element::bf16 ? f(c10::BFloat16{}) : f(c10::Half{});
}
/// Calls f with zeros of the C++ types of `a` and `b`.
template <class F>
void with_elements(Element a, Element b, F&& f) {
  with_element(a, [&](auto x) HWY_ATTR { with_element(b, [&](auto y) HWY_ATTR { f(x, y); }); });
}

HWY_INLINE float sum_of(V v) { return hn::GetLane(hn::SumOfLanes(D(), v)); }
HWY_INLINE float max_of(V v) { return hn::GetLane(hn::MaxOfLanes(D(), v)); }
HWY_INLINE V set(float x) { return hn::Set(D(), x); }
/// Returns e^v, within 2 units in the last place for v in [-87, 88]. Returns 0 for smaller v, e^88
/// for larger v, and NaN for NaN. Computes 2^n e^r with an integer n and |r| <= ln(2) / 2. Among
/// the polynomials of the same degree that begin with 1 + r, the polynomial for e^r has the
/// smallest relative error (4e-9).
HWY_INLINE V exp_of(V given) {
  const V v = hn::Min(set(88), hn::Max(set(-87), given));
  // Adding this number rounds to an integer, which is then in the lowest bits of the sum.
  constexpr float magic = 0x1.8p23f;
  const V shifted = hn::MulAdd(v, set(1.44269504089f), set(magic)),
          n = hn::Sub(shifted, set(magic));
  const V r = hn::NegMulAdd(n, set(-2.12194440e-4f), hn::NegMulAdd(n, set(0.693359375f), v));
  V y = hn::MulAdd(set(0.00138145965f), r, set(0.00836870726f));
  y = hn::MulAdd(y, r, set(0.041668389f));
  y = hn::MulAdd(y, r, set(0.166665211f));
  y = hn::MulAdd(y, r, set(0.49999994f));
  y = hn::MulAdd(hn::MulAdd(y, r, set(1)), r, set(1));
  const auto exponent =
      hn::Add(hn::ShiftLeft<23>(hn::BitCast(DU(), shifted)), hn::Set(DU(), 127u << 23));
  const V e = hn::IfThenZeroElse(hn::Lt(given, set(-87)), hn::Mul(y, hn::BitCast(D(), exponent)));
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return e;  // NaN stays NaN, since the operands of Min and Max above have the necessary order
#else
  return hn::IfThenElse(hn::Eq(given, given), e, given);
#endif
}
/// Return the larger of v and `low`, or the smaller of v and `high`. NaN stays NaN.
HWY_INLINE V at_least(float low, V v) { return hn::IfThenElse(hn::Lt(v, set(low)), set(low), v); }
HWY_INLINE V at_most(float high, V v) { return hn::IfThenElse(hn::Gt(v, set(high)), set(high), v); }
/// Returns 1 / v for v >= 1, within 4 units in the last place. On AVX2, returns 0 for v above
/// 2^126.
HWY_INLINE V inverse_of(V v) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  const V near = hn::ApproximateReciprocal(v);  // has at least 12 correct bits; the next line
                                                // improves it with a Newton step
  return hn::Mul(near, hn::NegMulAdd(v, near, set(2)));
#else
  return hn::Div(set(1), v);
#endif
}
/// Returns 1 / (1 + e^-v).
HWY_INLINE V sigmoid_of(V v) { return inverse_of(hn::Add(set(1), exp_of(hn::Neg(v)))); }

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
