#pragma once

#include "core/kernels/rules/rule.h"

namespace lathe {

/// The second half of LAMB, which runs after lamb_moments_cpu() (core/kernels/lamb.h) has updated
/// the moments. UpdateArgs::lr_scale must include the ratio of norms |p| / |u|.
struct LambApply : RuleDefaults {
  static constexpr const char* name = "lamb_apply";
  static constexpr const char* doc = "";
  static constexpr bool decoupled = true, hidden = true, raw = true;
  static std::vector<RuleState> state(const UpdateRule&) {
    return {{"exp_avg", 0}, {"exp_avg_sq", 1}};
  }
  template <class T>
  LATHE_BOTH static void prepare(Coefficients<T>& c, const UpdateRule&, const UpdateArgs& a,
                                 const StepControl& s) {
    c.wd = static_cast<T>(a.weight_decay);
    c.factor1 = static_cast<T>(1 / s.correction1);
  }
  /// Returns u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + wd p.
  template <class T>
  LATHE_BOTH static T direction(T p, T m, T v, const Coefficients<T>& c) {
    return m * c.factor1 / (std::sqrt(v) / c.correction2 + c.eps) + c.wd * p;
  }
  // p -= lr ratio u
  template <class T>
  LATHE_BOTH static T element(T p, T, T* s0, T* s1, T*, const Coefficients<T>& c) {
    return p - c.lr * direction(p, *s0, *s1, c);
  }
};

}  // namespace lathe
