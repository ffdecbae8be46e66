#include "core/kernels/muon.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/muon.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "hwy/highway.h"
// This include must follow hwy/highway.h.
#include "core/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {
namespace {

template <class T>
double run(const UpdateArgs& a, const UpdateRule& rule, const StepControl& control, int64_t begin,
           int64_t end, T* out) {
  const T grad_scale = static_cast<T>(grad_scale_of(rule, a, control));
  const T momentum = static_cast<T>(rule.momentum), rest = static_cast<T>(1 - rule.momentum);
  T grads[update_block];
  double sum = 0;
  for (int64_t at = begin; at < end; at += update_block) {
    const int64_t n = std::min(update_block, end - at);
    const T* g = load_gradient(a, rule, control, at, n, grads);
    T *m = static_cast<T*>(a.state[0]) + at, *x = out + at;
    for (int64_t i = 0; i < n; ++i) {
      const T scaled = g[i] * grad_scale;
      m[i] = momentum * m[i] + rest * scaled;
      x[i] = rule.nesterov ? rest * scaled + momentum * m[i] : m[i];
    }
    sum += lane_sum(
        n, [&](int64_t i) { return static_cast<double>(x[i]) * static_cast<double>(x[i]); });
  }
  return sum;
}

}  // namespace

double muon_direction(const UpdateArgs& a, const UpdateRule& rule, const StepControl& control,
                      int64_t begin, int64_t end, void* out) {
  return a.param_type == Element::f64 ? run(a, rule, control, begin, end, static_cast<double*>(out))
                                      : run(a, rule, control, begin, end, static_cast<float*>(out));
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(muon_direction);

double muon_direction_cpu(const UpdateArgs& args, const UpdateRule& rule,
                          const StepControl& control, int64_t begin, int64_t end, void* out) {
  return HWY_DYNAMIC_DISPATCH(muon_direction)(args, rule, control, begin, end, out);
}

}  // namespace lathe
#endif
