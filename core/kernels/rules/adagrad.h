#pragma once

#include "core/kernels/rules/rule.h"

namespace lathe {

/// Adagrad, as in torch.optim.Adagrad (Duchi, Hazan and Singer 2011).
struct Adagrad : RuleDefaults {
  static constexpr const char* name = "adagrad";
  static constexpr const char* doc = "learning rates that fall with the sum of squares";
  static constexpr bool decoupled = false;
  static std::vector<RuleState> state(const UpdateRule& r) {
    return {{"sum", 0, r.initial_accumulator}};
  }
  template <class T>
  LATHE_BOTH static void prepare(Coefficients<T>& c, const UpdateRule& r, const UpdateArgs& a,
                                 const StepControl& s) {
    c.lr =
        static_cast<T>(r.lr * a.lr_scale / (1 + static_cast<double>(s.updates - 1) * r.lr_decay));
  }
  // sum += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(sum) + eps)
  template <class T>
  LATHE_BOTH static T element(T p, T g, T* s0, T*, T*, const Coefficients<T>& c) {
    *s0 += g * g;
    return p - c.lr * (g / (std::sqrt(*s0) + c.eps));
  }
};

}  // namespace lathe
