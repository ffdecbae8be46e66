// Defines the table of optimizer rules. core/kernels/rules/rule.h explains what a rule is.
#pragma once

#include <type_traits>

#include "core/kernels/rules/adagrad.h"
#include "core/kernels/rules/adam.h"
#include "core/kernels/rules/lamb.h"
#include "core/kernels/rules/lion.h"
#include "core/kernels/rules/nadam.h"
#include "core/kernels/rules/rmsprop.h"
#include "core/kernels/rules/sgd.h"

namespace lathe {

template <class... R>
struct RuleList {
  /// Returns the index of a rule in the table.
  template <class Rule>
  static constexpr int32_t place() {
    int32_t at = -1, i = 0;
    ((std::is_same_v<R, Rule> ? void(at = i) : void(), ++i), ...);
    return at;
  }
};

using Rules = RuleList<Sgd, Momentum, Adagrad, RMSprop, Adam, AdamW, AdamAmsgrad, AdamWAmsgrad,
                       NAdam, Lion, LambApply, Descend>;

/// The UpdateRule::kind of a rule.
template <class Rule>
constexpr int32_t rule_kind = Rules::place<Rule>();

namespace detail {
template <class F, class... R>
LATHE_BOTH void with_rule(int32_t kind, F&& f, RuleList<R...>) {
  int32_t i = 0;
  ((i++ == kind ? void(f(R{})) : void()), ...);
}
}  // namespace detail

/// Calls f with a value of the rule type at position `kind` of the table.
template <class F>
LATHE_BOTH void with_rule(int32_t kind, F&& f) {
  detail::with_rule(kind, f, Rules{});
}
/// Calls f with a value of each rule's type.
template <class F, class... R>
void for_each_rule(F&& f, RuleList<R...>) {
  (f(R{}), ...);
}

}  // namespace lathe
