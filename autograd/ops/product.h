// Defines helpers of ops with matrix products.
#pragma once

#include <ATen/TensorOperators.h>

#include "autograd/ops/formula.h"

namespace lathe {

/// Returns whether a float16 matrix product is computed in float32 and rounded once. This is the
/// case on CPUs without float16 arithmetic, where ATen's float16 product is up to 90 times slower
/// (11 to 177 ms instead of 2 ms for [768, 512] x [512, 512] on 2 cores of a Zen 4).
inline bool widened(const at::Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kHalf && cpu_product_dtype(at::kHalf) == at::kFloat;
}

inline at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return widened(a) ? a.to(at::kFloat).matmul(b.to(at::kFloat)).to(at::kHalf) : a.matmul(b);
}
inline Variable product(const Variable& a, const Variable& b) { return matmul(a, b); }

/// Returns the FLOPs of a matrix product's backward if only some gradients are needed. `both` has
/// the FLOPs for the gradients of both factors.
template <size_t N>
Flops needed_flops(Flops both, Needs<N> needs) {
  both.matmul *= ((needs[0] ? 1 : 0) + (needs[1] ? 1 : 0)) / 2.0;
  return both;
}

}  // namespace lathe
