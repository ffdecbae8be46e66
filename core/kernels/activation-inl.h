// Activations on vectors of float32; included as simd-inl.h is.
#if defined(LATHE_CORE_KERNELS_ACTIVATION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_CORE_KERNELS_ACTIVATION_INL_H
#undef LATHE_CORE_KERNELS_ACTIVATION_INL_H
#else
#define LATHE_CORE_KERNELS_ACTIVATION_INL_H
#endif

#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

// GELU, tanh form: x s(2 k (x + c x^3)), s the logistic function, since (1 + tanh z) / 2 = s(2 z).
inline constexpr float gelu_2k = 1.5957691216057308f, gelu_c = 0.044715f;

// Beyond +-30 it is 0 or x, and its derivative 0 or 1, in float32; powers of x would overflow
// further on.
HWY_INLINE V gelu_of(V given) {
  const V x = at_least(-30, given), square = hn::Mul(x, x);
  const V z = hn::Mul(hn::Mul(x, set(gelu_2k)), hn::MulAdd(square, set(gelu_c), set(1)));
  return hn::Mul(x, sigmoid_of(z));
}
/// d gelu / dx = s + x s (1 - s) 2 k (1 + 3 c x^2), where 1 - s = e s with e = exp(-2 z): no
/// difference of near numbers.
HWY_INLINE V gelu_grad(V given) {
  const V x = at_most(30, at_least(-30, given)), square = hn::Mul(x, x);
  const V z = hn::Mul(hn::Mul(x, set(gelu_2k)), hn::MulAdd(square, set(gelu_c), set(1)));
  const V e = exp_of(hn::Neg(z)), s = inverse_of(hn::Add(set(1), e));
  const V dz = hn::Mul(set(gelu_2k), hn::MulAdd(square, set(3 * gelu_c), set(1)));
  return hn::MulAdd(hn::Mul(hn::Mul(x, dz), s), hn::Mul(e, s), s);
}
// Below -100 the logistic function is 0 in float32. exp_of() does not grow that far, so the zero is
// set: a large factor would make something of the rest. An infinite x gives NaN, as 0 times
// infinity is.
HWY_INLINE V zero_far_below(V x, V v) { return hn::IfThenZeroElse(hn::Lt(x, set(-100)), v); }
/// silu: x s(x); its derivative s + x s (1 - s).
HWY_INLINE V silu_of(V x) { return hn::Mul(x, zero_far_below(x, sigmoid_of(x))); }
HWY_INLINE V silu_grad(V given) {
  const V x = at_most(100, at_least(-100, given));
  const V e = exp_of(hn::Neg(x)), s = inverse_of(hn::Add(set(1), e));
  const V slope = zero_far_below(given, hn::MulAdd(hn::Mul(x, s), hn::Mul(e, s), s));
  return hn::MulAdd(given, set(0), slope);
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
