// Defines gradient descent, with and without momentum, and the final step of optimizers that
// compute a direction for a complete tensor.
#pragma once

#include "core/kernels/rules/rule.h"

namespace lathe {

/// Gradient descent, as in torch.optim.SGD.
struct Sgd : RuleDefaults {
  static constexpr const char* name = "sgd";
  static constexpr const char* doc = "gradient descent";
  static constexpr bool decoupled = false;
  static std::vector<RuleState> state(const UpdateRule&) { return {}; }
  // p -= lr g
  template <class T>
  LATHE_BOTH static T element(T p, T g, T*, T*, T*, const Coefficients<T>& c) {
    return p - c.lr * g;
  }
};

/// Gradient descent with momentum, as in torch.optim.SGD (Polyak 1964; Sutskever et al. 2013).
struct Momentum : RuleDefaults {
  static constexpr const char* name = "momentum";
  static constexpr const char* doc = "gradient descent with momentum or Nesterov momentum";
  static constexpr bool decoupled = false;
  static std::vector<RuleState> state(const UpdateRule&) { return {{"momentum_buffer"}}; }
  // v = momentum v + (1 - dampening) g, and v = g in the first update
  // p -= lr v; Nesterov: p -= lr (g + momentum v)
  template <class T>
  LATHE_BOTH static T element(T p, T g, T* s0, T*, T*, const Coefficients<T>& c) {
    *s0 = c.first ? g : c.momentum * *s0 + c.one_dampening * g;
    return p - c.lr * (c.nesterov ? g + c.momentum * *s0 : *s0);
  }
};

/// The step p = (1 - lr wd) p - lr g, where g (UpdateArgs::grad) is a direction that was computed
/// from the gradient. g is used unchanged. If g is null and lr is 0, the parameter stays the same,
/// and only its working copy and average are updated.
struct Descend : RuleDefaults {
  static constexpr const char* name = "descend";
  static constexpr const char* doc = "";
  static constexpr bool decoupled = true, hidden = true, raw = true;
  static std::vector<RuleState> state(const UpdateRule&) { return {}; }
  template <class T>
  LATHE_BOTH static T element(T p, T g, T*, T*, T*, const Coefficients<T>& c) {
    return p * c.decay - c.lr * g;
  }
};

}  // namespace lathe
