#pragma once

#include "core/kernels/rules/rule.h"

namespace lathe {

/// RMSprop, as in torch.optim.RMSprop (Tieleman and Hinton 2012; Graves 2013).
struct RMSprop : RuleDefaults {
  static constexpr const char* name = "rmsprop";
  static constexpr const char* doc = "steps divided by a running root mean square";
  static constexpr bool decoupled = false;
  static std::vector<RuleState> state(const UpdateRule& r) {
    std::vector<RuleState> all{{"square_avg", 0}};
    if (r.momentum > 0) all.push_back({"momentum_buffer", 1});
    if (r.centered) all.push_back({"grad_avg", 2});
    return all;
  }
  // q = alpha q + (1 - alpha) g^2;  d = sqrt(q) + eps, centered: d = sqrt(q - avg(g)^2) + eps
  // p -= lr g / d; with momentum: v = momentum v + g / d, p -= lr v
  template <class T>
  LATHE_BOTH static T element(T p, T g, T* s0, T* s1, T* s2, const Coefficients<T>& c) {
    const T square = c.alpha * *s0 + c.one_alpha * g * g,
            mean = c.centered ? *s2 + c.one_alpha * (g - *s2) : T(0);
    // Rounding can make this difference of two similar numbers negative, so replace a negative
    // difference by 0. PyTorch computes the square root without this check.
    T variance = square - mean * mean;
    variance = variance < 0 ? T(0) : variance;
    const T step = g / (std::sqrt(variance) + c.eps),
            velocity = c.momentum > 0 ? c.momentum * *s1 + step : step;
    *s0 = square;
    *s1 = velocity;
    *s2 = mean;
    return p - c.lr * velocity;
  }
};

}  // namespace lathe
