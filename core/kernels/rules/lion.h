#pragma once

#include "core/kernels/rules/rule.h"

namespace lathe {

/// Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2).
struct Lion : RuleDefaults {
  static constexpr const char* name = "lion";
  static constexpr const char* doc =
      "the sign of an interpolated momentum, with decoupled weight decay";
  static constexpr bool decoupled = true;
  static std::vector<RuleState> state(const UpdateRule&) { return {{"exp_avg"}}; }
  // u = sign(beta1 m + (1 - beta1) g);  p -= lr (u + wd p);  m = beta2 m + (1 - beta2) g
  template <class T>
  LATHE_BOTH static T element(T p, T g, T* s0, T*, T*, const Coefficients<T>& c) {
    const T u = c.beta1 * *s0 + c.one_beta1 * g;
    *s0 = c.beta2 * *s0 + c.one_beta2 * g;
    return p * c.decay - c.lr * (u > 0 ? T(1) : u < 0 ? T(-1) : T(0));
  }
};

}  // namespace lathe
