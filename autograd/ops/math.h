// Elementwise functions beside those of ops.h, with PyTorch's names, argument order and values: at
// ties, at zero, for infinities and NaN too. Shapes broadcast.
#pragma once

#include <optional>

#include "autograd/variable.h"

namespace lathe {

// Functions (ops/math.cc).
/// At 0 the derivative is 0.
Variable abs(const Variable& x);
/// -1, 0 or 1; its derivative is 0 everywhere.
Variable sign(const Variable& x);
Variable sin(const Variable& x);
Variable cos(const Variable& x);
/// log(1 + x), exact for small x.
Variable log1p(const Variable& x);
/// e^x - 1, exact for small x.
Variable expm1(const Variable& x);
/// 1 / sqrt(x).
Variable rsqrt(const Variable& x);
/// 1 / x.
Variable reciprocal(const Variable& x);
/// x log(y), and 0 where x is 0 whatever y is (but NaN where y is).
Variable xlogy(const Variable& x, const Variable& y);
/// x within [min, max]; a bound that is not given does not bind, and where they cross all is max.
/// The derivative is 1 at the bounds too.
Variable clamp(const Variable& x, std::optional<double> min,
               std::optional<double> max = std::nullopt);
/// The same with bounds that are broadcast, and take the gradient where they bind; undefined: none.
Variable clamp(const Variable& x, const Variable& min, const Variable& max = {});
/// The larger of both, NaN where one is; ties share the gradient equally.
Variable maximum(const Variable& a, const Variable& b);
Variable minimum(const Variable& a, const Variable& b);
/// a where the condition (bool) holds, b elsewhere; no gradient, also no NaN, comes from what was
/// not taken.
Variable where(const at::Tensor& condition, const Variable& a, const Variable& b);
Variable where(const at::Tensor& condition, const Variable& a, double b);
Variable where(const at::Tensor& condition, double a, const Variable& b);

// Comparisons give a bool tensor, as the operators do.
at::Tensor eq(const Variable& a, const Variable& b);
at::Tensor ne(const Variable& a, const Variable& b);
at::Tensor lt(const Variable& a, const Variable& b);
at::Tensor le(const Variable& a, const Variable& b);
at::Tensor gt(const Variable& a, const Variable& b);
at::Tensor ge(const Variable& a, const Variable& b);

// Activations (ops/activations.cc).
/// log(1 + e^(beta x)) / beta, x itself where beta x is above the threshold.
Variable softplus(const Variable& x, double beta = 1, double threshold = 20);
/// log sigmoid(x), exact for large -x.
Variable logsigmoid(const Variable& x);
/// x above 0, alpha (e^x - 1) below. Clevert, Unterthiner and Hochreiter 2015.
Variable elu(const Variable& x, double alpha = 1);
/// x above 0, slope x below. Maas, Hannun and Ng 2013.
Variable leaky_relu(const Variable& x, double negative_slope = 0.01);
/// x clamp(x + 3, 0, 6) / 6. Howard et al. 2019.
Variable hardswish(const Variable& x);
/// x tanh(softplus(x)). Misra 2019.
Variable mish(const Variable& x);

// In place (ops/inplace.cc): the result is in x's memory, and x stands for it. Where no graph is
// recorded every handle and view of x changes, as with x += b. Where one is recorded nobody else
// may hold x's memory, neither a handle, nor a view, nor an op that saved it for backward, and x
// may be no parameter: an error otherwise, never a wrong gradient. What the op itself saves is in x
// too, and a later change is noticed by its version. x keeps its dtype.
Variable& relu_(Variable& x);
Variable& leaky_relu_(Variable& x, double negative_slope = 0.01);
Variable& tanh_(Variable& x);
Variable& sigmoid_(Variable& x);
Variable& masked_fill_(Variable& x, const at::Tensor& mask, double value);
/// x + b, where b broadcasts to x.
Variable& add_(Variable& x, const Variable& b);
Variable& mul_(Variable& x, double c);

}  // namespace lathe
