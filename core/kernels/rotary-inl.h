// Implements the rotary position embedding of one head. This file is included in the same way as
// simd-inl.h.
#if defined(LATHE_CORE_KERNELS_ROTARY_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_CORE_KERNELS_ROTARY_INL_H
#undef LATHE_CORE_KERNELS_ROTARY_INL_H
#else
#define LATHE_CORE_KERNELS_ROTARY_INL_H
#endif

#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

/// Rotates x [width] and writes the result to y, which may be x. rope_table [width] holds the
/// cosines, then the sines of the angles. The sines are multiplied by `sign`.
template <class T>
HWY_INLINE void rotate_head(const T* x, T* y, int64_t width, const float* rope_table, V sign) {
  const int64_t half = width / 2;
  for_vectors(half, [&](int64_t i, auto part) HWY_ATTR {
    const V a = part(x + i), b = part(x + half + i), c = part(rope_table + i),
            s = hn::Mul(part(rope_table + half + i), sign);
    part(hn::NegMulAdd(b, s, hn::Mul(a, c)), y + i);
    part(hn::MulAdd(a, s, hn::Mul(b, c)), y + half + i);
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
