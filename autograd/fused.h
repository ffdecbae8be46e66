// Implements fusion, which runs a function as one op. The function consists of elementwise ops and
// may contain sums of rows. The forward pass reads each input once and writes the result once. The
// backward pass writes one gradient for each input that has the result's shape. An input that is
// broadcast gets a gradient for each use. If the input has one value per row, so does this
// gradient. Otherwise, the gradient has the result's shape, and the engine then sums it to the
// input's shape.
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

/// Returns fn(inputs...). One op "fused" computes the result if fn consists of these ops: + - * /
/// with Variables and numbers, neg, exp, log, sqrt, rsqrt, reciprocal, pow, tanh, erf, sigmoid,
/// relu, silu, gelu, cast, masked_fill, where and comparisons, softmax() and log_softmax() over the
/// last dim, and sum() and mean() over the last dim with `keepdim`. The result and the gradients
/// have the same bits as if the ops ran one by one (NaNs may differ in their payload); second
/// derivatives agree up to rounding. For backward, the op keeps the inputs on which its gradients
/// depend, the sums, and the results of functions such as exp(). It computes the other values
/// again.
///
/// Only float32 and bfloat16 on CPUs are fused, and only float32 is summed. Inputs and captured
/// tensors must be contiguous and have the shape of the largest tensor, or be a row, a column or a
/// number that is broadcast to that shape. Anything else runs op by op, as without fused(). So does
/// a function with gelu() or sums of rows if the tensors have a size that ATen divides among its
/// threads differently than a fused op does, because fusing would then change the bits. fused()
/// calls fn first with tensors that have no values, and again if fn can't be fused, or if its ops
/// are observed or recomputed. So fn must have no side effects.
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
