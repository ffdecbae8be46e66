#include "core/kernels/lamb.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/lamb.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "hwy/highway.h"
// This include must follow hwy/highway.h.
#include "core/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {
namespace {

template <class T>
LambSums run(const UpdateArgs& a, const UpdateRule& rule, const StepControl& control, int64_t begin,
             int64_t end) {
  const Coefficients<T> c = coefficients<LambApply, T>(rule, a, control);
  T grads[update_block], params[update_block], direction[update_block];
  LambSums sums;
  for (int64_t at = begin; at < end; at += update_block) {
    const int64_t n = std::min(update_block, end - at);
    const T* g = load_gradient(a, rule, control, at, n, grads);
    const T* p = load(a.param, a.param_type, at, n, params);
    T *m = static_cast<T*>(a.state[0]) + at, *v = static_cast<T*>(a.state[1]) + at;
    for (int64_t i = 0; i < n; ++i) {
      const T x = g[i] * c.grad_scale;
      m[i] = c.beta1 * m[i] + c.one_beta1 * x;
      v[i] = c.beta2 * v[i] + c.one_beta2 * x * x;
      direction[i] = LambApply::direction(p[i], m[i], v[i], c);
    }
    const auto square = [](T x) { return static_cast<double>(x) * static_cast<double>(x); };
    sums.param += lane_sum(n, [&](int64_t i) { return square(p[i]); });
    sums.direction += lane_sum(n, [&](int64_t i) { return square(direction[i]); });
  }
  return sums;
}

}  // namespace

LambSums lamb_moments(const UpdateArgs& a, const UpdateRule& rule, const StepControl& control,
                      int64_t begin, int64_t end) {
  return a.param_type == Element::f64 ? run<double>(a, rule, control, begin, end)
                                      : run<float>(a, rule, control, begin, end);
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(lamb_moments);

LambSums lamb_moments_cpu(const UpdateArgs& args, const UpdateRule& rule,
                          const StepControl& control, int64_t begin, int64_t end) {
  return HWY_DYNAMIC_DISPATCH(lamb_moments)(args, rule, control, begin, end);
}

}  // namespace lathe
#endif
