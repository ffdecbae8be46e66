#pragma once

#include "core/kernels/rules/rule.h"

namespace lathe {

/// Adam, or AdamW if `Decoupled` is true, as in torch.optim. If `Amsgrad` is true, the rule uses
/// AMSGrad. References: Kingma and Ba 2015; Loshchilov and Hutter 2019; Reddi, Kale and Kumar 2018.
template <bool Decoupled, bool Amsgrad>
struct AdamRule : RuleDefaults {
  static constexpr const char* name = Decoupled ? "adamw" : "adam";
  static constexpr const char* doc =
      Decoupled ? "Adam with decoupled weight decay" : "moments of first and second order";
  static constexpr bool decoupled = Decoupled;
  static constexpr bool hidden = Amsgrad;  // the key optim.amsgrad selects AMSGrad
  static std::vector<RuleState> state(const UpdateRule&) {
    std::vector<RuleState> all{{"exp_avg", 0}, {"exp_avg_sq", 1}};
    if (Amsgrad) all.push_back({"max_exp_avg_sq", 2});
    return all;
  }
  template <class T>
  LATHE_BOTH static void prepare(Coefficients<T>& c, const UpdateRule& r, const UpdateArgs& a,
                                 const StepControl& s) {
    c.lr = static_cast<T>(r.lr * a.lr_scale / s.correction1);
  }
  // AdamW: p -= lr wd p
  // m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
  // p -= lr / (1 - beta1^t) m / (sqrt(x / (1 - beta2^t)) + eps)
  // AMSGrad: x = max(x, v); otherwise x = v
  template <class T>
  LATHE_BOTH static T element(T p, T g, T* s0, T* s1, [[maybe_unused]] T* s2,
                              const Coefficients<T>& c) {
    if constexpr (Decoupled) p *= c.decay;
    const T m = c.beta1 * *s0 + c.one_beta1 * g, v = c.beta2 * *s1 + c.one_beta2 * g * g;
    T most = v;
    if constexpr (Amsgrad) *s2 = most = v > *s2 ? v : *s2;
    *s0 = m;
    *s1 = v;
    return p - c.lr * (m / (std::sqrt(most) / c.correction2 + c.eps));
  }
};

using Adam = AdamRule<false, false>;
using AdamW = AdamRule<true, false>;
using AdamAmsgrad = AdamRule<false, true>;
using AdamWAmsgrad = AdamRule<true, true>;

}  // namespace lathe
