// fp8 linear layers: e4m3 for inputs and weights, e5m2 for gradients, one scale a tensor, sums in
// float32. On GPUs that multiply fp8 (compute capability 8.9 and up) through cuBLASLt, elsewhere
// by the same rounding and a float32 matmul. Micikevicius et al. 2022, "FP8 formats for deep
// learning".
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// Where a linear layer's fp8 scales come from. Belongs to its weight's Leaf, which is what makes
/// it an fp8 layer.
struct Fp8Scaling {
  /// What a tensor is to the layer: a row of `history`.
  enum Role { input, weight, gradient };
  /// Undefined: current scaling. Else [3, 1 + steps] float32, a row for each role: the largest
  /// absolute value in this step, then in the steps before it.
  at::Tensor history;

  /// The absolute value that fp8's largest stands for, [] float32. Delayed: the largest of the
  /// steps before, or t's own where there is none yet; records t's but not in an evaluation.
  at::Tensor largest(Role role, const at::Tensor& t) const;
  /// Ends a step: this step's values become history.
  void advance() const;
};

/// A tensor in fp8 and the [] float32 factor that takes it back.
struct Fp8Tensor {
  at::Tensor data, factor;
};

/// t * (format's largest / largest), clamped to the format and rounded to nearest even. A `largest`
/// that is not finite makes the factor NaN, so that an overflow stays visible. format:
/// float8_e4m3fn or float8_e5m2.
Fp8Tensor to_fp8(const at::Tensor& t, const at::Tensor& largest, at::ScalarType format);

/// a [m, k], b [n, k] -> a b^T, plus a float32 bias [n] where defined, in `out` dtype. On hardware,
/// k and n must be multiples of 16.
at::Tensor fp8_matmul_nt(const Fp8Tensor& a, const Fp8Tensor& b, const at::Tensor& bias,
                         at::ScalarType out);

}  // namespace lathe
