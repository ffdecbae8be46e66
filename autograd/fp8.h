// Implements fp8 linear layers. Inputs and weights are in e4m3, and gradients in e5m2. Each tensor
// has one scale. Matrix products accumulate in float32. GPUs with fp8 support (compute capability
// 8.9 and up) use cuBLASLt. Other devices round in the same way and compute a float32 matmul. See
// Micikevicius et al. 2022, "FP8 formats for deep learning".
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// The source of a linear layer's fp8 scales. A layer computes in fp8 if the Leaf of its weight has
/// an Fp8Scaling.
struct Fp8Scaling {
  /// The role of a tensor in the layer, which is also its row in `history`.
  enum Role { input, weight, gradient };
  /// Undefined for current scaling. For delayed scaling, [3, 1 + steps] float32 with one row for
  /// each role: the largest absolute value in the current step, followed by the largest absolute
  /// values in the previous steps.
  at::Tensor history;

  /// Returns the absolute value that is mapped to the largest fp8 number, [] float32. With current
  /// scaling, it is the largest absolute value of t. With delayed scaling, it is the largest value
  /// of the previous steps; if no value is recorded yet, or if t is not finite, it is the largest
  /// absolute value of t. Delayed scaling also records the largest absolute value of t if it is
  /// finite, except in a forward pass that records no graph or is a recomputation.
  at::Tensor largest(Role role, const at::Tensor& t) const;
  /// Ends a step of delayed scaling: moves the step's values into the history.
  void advance() const;
};

/// A tensor in fp8. Its values are `data` times `factor`, which is [] float32.
struct Fp8Tensor {
  at::Tensor data, factor;
};

/// Returns t * (limit / largest), clamped to the range of the format and rounded to nearest even.
/// `limit` is the largest number of the format. If `largest` is 1e-30 or less, t is not scaled. If
/// `largest` is not finite, the factor is NaN, so that an overflow stays visible. `format` is
/// float8_e4m3fn or float8_e5m2.
Fp8Tensor to_fp8(const at::Tensor& t, const at::Tensor& largest, at::ScalarType format);

/// Returns a b^T for a [m, k] and b [n, k], plus a float32 bias [n] if defined, in dtype `out`.
/// With fp8 hardware, k and n must be multiples of 16.
at::Tensor fp8_matmul_nt(const Fp8Tensor& a, const Fp8Tensor& b, const at::Tensor& bias,
                         at::ScalarType out);

}  // namespace lathe
