// Declares the reductions, scans and sorting that ops.h does not have, with PyTorch's names,
// argument order and values. If no dims are given, they reduce over all dims. Dims may be negative.
// Sums and products of float16 and bfloat16 are computed in float32 and rounded once.
#pragma once

#include <optional>
#include <utility>

#include "autograd/variable.h"

namespace lathe {

// Extremes and sorting (ops/extremes.cc). A NaN is both the maximum and the minimum. sort() treats
// NaN as larger than all numbers.
/// Return the maximum or minimum over all elements. Tied elements share the gradient equally. Both
/// throw if `x` is empty.
Variable max(const Variable& x);
Variable min(const Variable& x);
/// Return the maximum or minimum along a dim, and its position (int64). Only the element at that
/// position receives the gradient.
std::pair<Variable, at::Tensor> max(const Variable& x, int64_t dim, bool keepdim = false);
std::pair<Variable, at::Tensor> min(const Variable& x, int64_t dim, bool keepdim = false);
/// Return the position (int64) of the maximum or minimum along a dim, or in the flattened tensor.
at::Tensor argmax(const Variable& x, std::optional<int64_t> dim = std::nullopt,
                  bool keepdim = false);
at::Tensor argmin(const Variable& x, std::optional<int64_t> dim = std::nullopt,
                  bool keepdim = false);
/// Returns x sorted along a dim, and the position in x of each element of the result (int64). Equal
/// elements keep their order.
std::pair<Variable, at::Tensor> sort(const Variable& x, int64_t dim = -1, bool descending = false);

// Sums and products (ops/scans.cc).
/// Returns y_i = x_0 + ... + x_i along a dim.
Variable cumsum(const Variable& x, int64_t dim);
/// Returns y_i = x_0 ... x_i along a dim. Gradients are exact even if x contains zeros.
Variable cumprod(const Variable& x, int64_t dim);
/// Return the product of all elements, or of the elements along a dim. Gradients are exact even if
/// x contains zeros.
Variable prod(const Variable& x);
Variable prod(const Variable& x, int64_t dim, bool keepdim = false);

// Statistics (ops/statistics.cc).
/// Returns log(sum of e^x), without overflow.
Variable logsumexp(const Variable& x, at::OptionalIntArrayRef dims, bool keepdim = false);
/// Returns the variance of n elements, with the divisor n - correction. A correction of 1 is
/// Bessel's correction.
Variable var(const Variable& x, at::OptionalIntArrayRef dims = std::nullopt, double correction = 1,
             bool keepdim = false);
/// Returns the standard deviation. The gradient is 0 where the variance is 0. Under `using
/// namespace lathe` write lathe::std, since std is the namespace of the standard library.
Variable std(const Variable& x, at::OptionalIntArrayRef dims = std::nullopt, double correction = 1,
             bool keepdim = false);
/// Returns (sum of |x|^p)^(1/p). For p = infinity this is the largest |x|, for -infinity the
/// smallest, and for 0 the number of nonzero elements. The gradient is 0 where the norm is 0.
Variable norm(const Variable& x, double p = 2, at::OptionalIntArrayRef dims = std::nullopt,
              bool keepdim = false);

}  // namespace lathe
