// Fusion: a function of elementwise ops runs as one op. Forward it reads each input once and writes
// its result once. Backward it writes one gradient for each input of the result's shape; an input
// that is broadcast gets a gradient of the result's shape for each use, which is then summed.
#pragma once

#include <array>
#include <concepts>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

#include "autograd/variable.h"

namespace lathe {
namespace detail {

using FusedFunction = std::function<Variable(std::span<const Variable>)>;

/// Implements fused().
Variable run_fused(std::span<const Variable> inputs, const FusedFunction& fn);

}  // namespace detail

/// Returns fn(inputs...), computed by one op "fused" where fn consists of elementwise ops: + - * /
/// with Variables and numbers, neg, exp, log, sqrt, rsqrt, reciprocal, pow, tanh, erf, sigmoid,
/// relu, silu, gelu, cast, masked_fill, where and comparisons. The result and the gradients have
/// the bits of the ops run one by one (NaNs may differ in their payload); second derivatives agree
/// up to rounding. For backward the op keeps the inputs that its gradients depend on and the
/// results of functions such as exp(); it computes the other values again. What is read only for
/// second derivatives, such as the argument of exp(), may change in place until then.
///
/// It applies on CPUs to float32 and bfloat16. The inputs and what fn captures have the result's
/// shape, or are a row, a column or a number that is broadcast to it; all are contiguous. Anything
/// else runs op by op as without fused(), such as gelu() where ATen's threads would divide it
/// otherwise than a chain. fn is called for each call of fused(), at first with tensors that have
/// no values, and again if it can't be fused, is observed or is recomputed. So it must have no
/// other effects than its result.
template <class F, std::same_as<Variable>... In>
Variable fused(const F& fn, const In&... inputs) {
  static_assert(std::is_same_v<std::invoke_result_t<const F&, const In&...>, Variable>,
                "the function of fused() must return a Variable");
  const std::array<Variable, sizeof...(In)> given{inputs...};
  return detail::run_fused(given, [&fn](std::span<const Variable> v) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return fn(v[I]...);
    }(std::index_sequence_for<In...>());
  });
}

}  // namespace lathe
