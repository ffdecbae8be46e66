// Implements activation functions on vectors of float32. This file is included in the same way as
// simd-inl.h.
#if defined(LATHE_CORE_KERNELS_ACTIVATION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_CORE_KERNELS_ACTIVATION_INL_H
#undef LATHE_CORE_KERNELS_ACTIVATION_INL_H
#else
#define LATHE_CORE_KERNELS_ACTIVATION_INL_H
#endif

#include "core/kernels/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

// The tanh form of GELU is x s(2 k (x + c x^3)), where s is the logistic function and k = sqrt(2 /
// pi), since (1 + tanh z) / 2 = s(2 z).
inline constexpr float gelu_2k = 1.5957691216057308f, gelu_c = 0.044715f;

/// Returns gelu(x). Powers of large |x| would overflow, so x is clamped to at least -30. Below -30,
/// GELU is 0 in float32.
HWY_INLINE V gelu_of(V given) {
  const V x = at_least(-30, given), square = hn::Mul(x, x);
  const V z = hn::Mul(hn::Mul(x, set(gelu_2k)), hn::MulAdd(square, set(gelu_c), set(1)));
  return hn::Mul(x, sigmoid_of(z));
}
/// Returns d gelu / dx = s + x s (1 - s) 2 k (1 + 3 c x^2), where s = 1 / (1 + e) and e = exp(-2 k
/// (x + c x^3)). 1 - s is computed as e s, to avoid cancellation. Beyond +-30, the derivative is 0
/// or 1 in float32, so x is clamped to this range.
HWY_INLINE V gelu_grad(V given) {
  const V x = at_most(30, at_least(-30, given)), square = hn::Mul(x, x);
  const V z = hn::Mul(hn::Mul(x, set(gelu_2k)), hn::MulAdd(square, set(gelu_c), set(1)));
  const V e = exp_of(hn::Neg(z)), s = inverse_of(hn::Add(set(1), e));
  const V dz = hn::Mul(set(gelu_2k), hn::MulAdd(square, set(3 * gelu_c), set(1)));
  return hn::MulAdd(hn::Mul(hn::Mul(x, dz), s), hn::Mul(e, s), s);
}
// Returns 0 for x below -100, otherwise v. Below -100, the logistic function is smaller than 4e-44,
// but sigmoid_of() returns a larger number, since exp_of() returns at most e^88. A factor x with
// large |x| would make this error visible. silu_of(-infinity) is NaN, since 0 times infinity is
// NaN.
HWY_INLINE V zero_far_below(V x, V v) { return hn::IfThenZeroElse(hn::Lt(x, set(-100)), v); }
/// Returns silu(x) = x s(x), where s is the logistic function.
HWY_INLINE V silu_of(V x) { return hn::Mul(x, zero_far_below(x, sigmoid_of(x))); }
/// Returns the derivative of silu: s + x s (1 - s). The derivative is NaN if x is infinite or NaN.
HWY_INLINE V silu_grad(V given) {
  const V x = at_most(100, at_least(-100, given));
  const V e = exp_of(hn::Neg(x)), s = inverse_of(hn::Add(set(1), e));
  const V derivative = zero_far_below(given, hn::MulAdd(hn::Mul(x, s), hn::Mul(e, s), s));
  return hn::MulAdd(given, set(0), derivative);
}

/// Returns tanh(x), within 4 units in the last place. NaN stays NaN.
HWY_INLINE V tanh_of(V x) { return hn::Tanh(D(), x); }

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
