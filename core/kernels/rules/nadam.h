// Defines NAdam. StepControl::mu_product holds the product of momenta, and checkpoints save it.
#pragma once

#include "core/kernels/rules/rule.h"

namespace lathe {

/// NAdam, which is Adam with Nesterov's momentum, as in torch.optim.NAdam (Dozat 2016).
struct NAdam : RuleDefaults {
  static constexpr const char* name = "nadam";
  static constexpr const char* doc = "Adam with Nesterov's momentum";
  static constexpr bool decoupled = false;
  static std::vector<RuleState> state(const UpdateRule&) {
    return {{"exp_avg", 0}, {"exp_avg_sq", 1}};
  }
  // mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)
  LATHE_BOTH static void settle(const UpdateRule& r, StepControl& c) {
    const auto mu = [&](double t) {
      return r.beta1 * (1 - 0.5 * std::pow(0.96, t * r.momentum_decay));
    };
    c.mu = mu(static_cast<double>(c.updates));
    c.next_mu = mu(static_cast<double>(c.updates) + 1);
    c.mu_product *= c.mu;
  }
  template <class T>
  LATHE_BOTH static void prepare(Coefficients<T>& c, const UpdateRule& r, const UpdateArgs& a,
                                 const StepControl& s) {
    const double lr = r.lr * a.lr_scale;
    c.factor1 = static_cast<T>(lr * (1 - s.mu) / (1 - s.mu_product));
    c.factor2 = static_cast<T>(lr * s.next_mu / (1 - s.mu_product * s.next_mu));
  }
  // m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  d = sqrt(v / (1 - beta2^t)) + eps
  // p -= lr ((1 - mu_t) / (1 - mu_1 ... mu_t) g / d + mu_t+1 / (1 - mu_1 ... mu_t+1) m / d)
  template <class T>
  LATHE_BOTH static T element(T p, T g, T* s0, T* s1, T*, const Coefficients<T>& c) {
    *s0 = c.beta1 * *s0 + c.one_beta1 * g;
    *s1 = c.beta2 * *s1 + c.one_beta2 * g * g;
    const T d = std::sqrt(*s1) / c.correction2 + c.eps;
    return p - (c.factor1 * g + c.factor2 * *s0) / d;
  }
};

}  // namespace lathe
