// Defines what a rule is: an optimizer whose update of an element needs only the parameter,
// gradient and state of that element.
//
//   struct Mine : RuleDefaults {
//     static constexpr const char* name = "mine";  // the value of optim.kind
//     static constexpr const char* doc = "...";
//     // True: the formula applies weight decay by c.decay. False: g includes weight decay.
//     static constexpr bool decoupled = false;
//     static std::vector<RuleState> state(const UpdateRule& r);
//     // Returns the parameter after the step. g: the gradient, unscaled and clipped; s0, s1, s2:
//     // the element's states with RuleState::place 0, 1 and 2. The pointer of a state that state()
//     // does not list points to a number that nothing else reads.
//     // Avoid branches, so that the compiler can use vectors.
//     template <class T>
//     LATHE_BOTH static T element(T p, T g, T* s0, T* s1, T* s2, const Coefficients<T>& c);
//   };
//
// Put a new rule in a file in core/kernels/rules/, and add it to the list in core/kernels/rules.h.
// CPUs, GPUs, checkpoints, plans and the config then support the rule.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/kernels/update.h"

#ifdef __CUDACC__
#define LATHE_BOTH __host__ __device__
#else
#define LATHE_BOTH
#endif

namespace lathe {

/// A tensor of a rule's state, with the parameter's shape.
struct RuleState {
  const char* name;  ///< the name of the state in torch.optim
  int place = 0;     ///< index in UpdateArgs::state
  double start = 0;  ///< initial value of the elements
};

/// A rule's constants, in the type in which the update of a parameter is computed. `first` is true
/// in the first update.
template <class T>
struct Coefficients {
  T lr, decay, grad_scale, wd, beta1, one_beta1, beta2, one_beta2, eps, momentum, one_dampening,
      alpha, one_alpha, correction2, factor1 = 0,
                                     factor2 = 0;  ///< factor1, factor2: for the rule's own use
  bool first, nesterov, centered;

  LATHE_BOTH Coefficients(const UpdateRule& r, const UpdateArgs& a, const StepControl& c,
                          bool decoupled, double grad_scale_)
      : lr(static_cast<T>(r.lr * a.lr_scale)),
        decay(static_cast<T>(1 - r.lr * a.lr_scale * a.weight_decay)),
        grad_scale(static_cast<T>(grad_scale_)),
        wd(static_cast<T>(decoupled ? 0.0 : a.weight_decay)),
        beta1(static_cast<T>(r.beta1)),
        one_beta1(static_cast<T>(1 - r.beta1)),
        beta2(static_cast<T>(r.beta2)),
        one_beta2(static_cast<T>(1 - r.beta2)),
        eps(static_cast<T>(r.eps)),
        momentum(static_cast<T>(r.momentum)),
        one_dampening(static_cast<T>(1 - r.dampening)),
        alpha(static_cast<T>(r.alpha)),
        one_alpha(static_cast<T>(1 - r.alpha)),
        correction2(static_cast<T>(c.correction2)),
        first(c.updates == 1),
        nesterov(r.nesterov),
        centered(r.centered) {}
};

/// Default members of a rule.
struct RuleDefaults {
  static constexpr bool hidden = false;  ///< true: the rule is part of another kind, and not a
                                         ///< value of optim.kind
  /// Whether the gradient is used unchanged, neither unscaled nor clipped.
  static constexpr bool raw = false;
  /// Sets the coefficients that only this rule uses.
  template <class T>
  LATHE_BOTH static void prepare(Coefficients<T>&, const UpdateRule&, const UpdateArgs&,
                                 const StepControl&) {}
  /// Changes the decision of the step. This function is called once per update, before any
  /// parameter is updated.
  LATHE_BOTH static void settle(const UpdateRule&, StepControl&) {}
};

}  // namespace lathe
