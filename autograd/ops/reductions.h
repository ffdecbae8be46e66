// Reductions, scans and orders beside those of ops.h, with PyTorch's names, argument order and
// values. No dims: all of them; dims may be negative. Sums and products of float16 and bfloat16 are
// taken in float32 and rounded once.
#pragma once

#include <optional>
#include <utility>

#include "autograd/variable.h"

namespace lathe {

// Extremes and orders (ops/extremes.cc). NaN is larger than all.
/// The largest of all elements; a tie shares its gradient equally. An error for none.
Variable max(const Variable& x);
Variable min(const Variable& x);
/// The largest along a dim, and its place (int64), to which the gradient goes.
std::pair<Variable, at::Tensor> max(const Variable& x, int64_t dim, bool keepdim = false);
std::pair<Variable, at::Tensor> min(const Variable& x, int64_t dim, bool keepdim = false);
/// The place (int64) of the largest along a dim, or among all elements in order.
at::Tensor argmax(const Variable& x, std::optional<int64_t> dim = std::nullopt,
                  bool keepdim = false);
at::Tensor argmin(const Variable& x, std::optional<int64_t> dim = std::nullopt,
                  bool keepdim = false);
/// In order along a dim, equal ones in the order that they had, and their places before (int64).
std::pair<Variable, at::Tensor> sort(const Variable& x, int64_t dim = -1, bool descending = false);

// Sums and products (ops/scans.cc).
/// y_i = x_0 + ... + x_i along a dim.
Variable cumsum(const Variable& x, int64_t dim);
/// y_i = x_0 ... x_i along a dim; exact gradients where there are zeros too.
Variable cumprod(const Variable& x, int64_t dim);
/// The product of all elements, or along a dim; exact gradients where there are zeros too.
Variable prod(const Variable& x);
Variable prod(const Variable& x, int64_t dim, bool keepdim = false);

// Statistics (ops/statistics.cc).
/// log(sum of e^x), without overflow.
Variable logsumexp(const Variable& x, at::OptionalIntArrayRef dims, bool keepdim = false);
/// The mean square distance from the mean, divided by n - correction in place of n: 1 is Bessel's,
/// 0 none.
Variable var(const Variable& x, at::OptionalIntArrayRef dims = std::nullopt, double correction = 1,
             bool keepdim = false);
/// Its root; the gradient is 0 where the variance is 0. Under `using namespace lathe` it is
/// lathe::std, beside the standard library's namespace.
Variable std(const Variable& x, at::OptionalIntArrayRef dims = std::nullopt, double correction = 1,
             bool keepdim = false);
/// (sum of |x|^p)^(1/p); infinity: the largest |x|, -infinity: the smallest, 0: how many are not 0.
/// Where it is 0 the gradient is 0.
Variable norm(const Variable& x, double p = 2, at::OptionalIntArrayRef dims = std::nullopt,
              bool keepdim = false);

}  // namespace lathe
