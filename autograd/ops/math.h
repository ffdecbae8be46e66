// Declares the elementwise functions that ops.h does not have. Their names and argument order are
// PyTorch's. So are their values and gradients, even at ties, zeros, infinities and NaN. Shapes
// broadcast.
#pragma once

#include <optional>

#include "autograd/variable.h"

namespace lathe {

// Functions (ops/math.cc).
/// Returns |x|. At 0 the derivative is 0.
Variable abs(const Variable& x);
/// Returns the sign of x, -1, 0 or 1. The derivative is 0 everywhere.
Variable sign(const Variable& x);
Variable sin(const Variable& x);
Variable cos(const Variable& x);
/// Returns log(1 + x), which is accurate even for small x.
Variable log1p(const Variable& x);
/// Returns e^x - 1, which is accurate even for small x.
Variable expm1(const Variable& x);
/// Returns 1 / sqrt(x).
Variable rsqrt(const Variable& x);
/// Returns 1 / x.
Variable reciprocal(const Variable& x);
/// Returns x log(y), but 0 where x is 0 and y is not NaN.
Variable xlogy(const Variable& x, const Variable& y);
/// Limits x to [min, max]. Either bound may be missing. If min > max, the result is max. The
/// derivative is 1 where min <= x <= max, and 0 elsewhere.
Variable clamp(const Variable& x, std::optional<double> min,
               std::optional<double> max = std::nullopt);
/// Limits x to bounds that are Variables. The bounds are broadcast, and receive the gradient of the
/// elements that they limit. An undefined Variable stands for a missing bound.
Variable clamp(const Variable& x, const Variable& min, const Variable& max = {});
/// Return the elementwise maximum or minimum of a and b, or NaN where either is NaN. Ties share the
/// gradient equally.
Variable maximum(const Variable& a, const Variable& b);
Variable minimum(const Variable& a, const Variable& b);
/// Return a where the condition (bool) is true, and b elsewhere. Elements that were not taken get a
/// gradient of 0, even if they are NaN.
Variable where(const at::Tensor& condition, const Variable& a, const Variable& b);
Variable where(const at::Tensor& condition, const Variable& a, double b);
Variable where(const at::Tensor& condition, double a, const Variable& b);

// These comparisons return a bool tensor, as the comparison operators do.
at::Tensor eq(const Variable& a, const Variable& b);
at::Tensor ne(const Variable& a, const Variable& b);
at::Tensor lt(const Variable& a, const Variable& b);
at::Tensor le(const Variable& a, const Variable& b);
at::Tensor gt(const Variable& a, const Variable& b);
at::Tensor ge(const Variable& a, const Variable& b);

// Activations (ops/activations.cc).
/// Returns log(1 + e^(beta x)) / beta, or x where beta x is above the threshold.
Variable softplus(const Variable& x, double beta = 1, double threshold = 20);
/// Returns log sigmoid(x), which is accurate even for large negative x.
Variable logsigmoid(const Variable& x);
/// Returns x where x > 0, and alpha (e^x - 1) elsewhere. Clevert, Unterthiner and Hochreiter 2015.
Variable elu(const Variable& x, double alpha = 1);
/// Returns x where x > 0, and negative_slope x elsewhere. Maas, Hannun and Ng 2013.
Variable leaky_relu(const Variable& x, double negative_slope = 0.01);
/// Returns x clamp(x + 3, 0, 6) / 6. Howard et al. 2019.
Variable hardswish(const Variable& x);
/// Returns x tanh(softplus(x)). Misra 2019.
Variable mish(const Variable& x);

// In place (ops/inplace.cc): the result is written into the memory of x, and x becomes the result.
// If no graph is recorded, every handle and view of x changes, as with x += b. If a graph is
// recorded, the function throws if x is a parameter or if anything else holds the memory of x: a
// handle, a view, or an op that saved x for backward. No gradient can therefore be wrong. relu_,
// leaky_relu_, tanh_ and sigmoid_ save the result, which is in x; backward throws if x is changed
// in place later. x keeps its dtype.
Variable& relu_(Variable& x);
Variable& leaky_relu_(Variable& x, double negative_slope = 0.01);
Variable& tanh_(Variable& x);
Variable& sigmoid_(Variable& x);
Variable& masked_fill_(Variable& x, const at::Tensor& mask, double value);
/// Adds b, which broadcasts to x.
Variable& add_(Variable& x, const Variable& b);
Variable& mul_(Variable& x, double c);

}  // namespace lathe
