// fp8 linear layers: e4m3 for inputs and weights, e5m2 for gradients, one scale per tensor, sums in
// float32. GPUs that multiply fp8 (compute capability 8.9 and up) use cuBLASLt; other devices round
// in the same way and use a float32 matmul. Micikevicius et al. 2022, "FP8 formats for deep
// learning".
#pragma once

#include <ATen/core/Tensor.h>

namespace lathe {

/// The source of a linear layer's fp8 scales. A layer computes in fp8 if the Leaf of its weight has
/// one.
struct Fp8Scaling {
  /// The role of a tensor in the layer, and its row of `history`.
  enum Role { input, weight, gradient };
  /// Undefined for current scaling. For delayed scaling [3, 1 + steps] float32, a row for each
  /// role: the largest absolute value of this step, then of the steps before it.
  at::Tensor history;

  /// Returns the absolute value that is mapped to the largest fp8 number, [] float32. With delayed
  /// scaling this is the largest of the previous steps, or that of t if there is none yet. Records
  /// the value of t, except in an evaluation.
  at::Tensor largest(Role role, const at::Tensor& t) const;
  /// Ends a step: moves its values into the history.
  void advance() const;
};

/// A tensor in fp8, and the [] float32 factor that it must be multiplied by.
struct Fp8Tensor {
  at::Tensor data, factor;
};

/// Returns t * (format's largest / largest), clamped to the format and rounded to nearest even. If
/// `largest` is not finite, the factor is NaN, so that an overflow stays visible. format:
/// float8_e4m3fn or float8_e5m2.
Fp8Tensor to_fp8(const at::Tensor& t, const at::Tensor& largest, at::ScalarType format);

/// Returns a b^T for a [m, k] and b [n, k], plus a float32 bias [n] if defined, in dtype `out`.
/// With fp8 hardware, k and n must be multiples of 16.
at::Tensor fp8_matmul_nt(const Fp8Tensor& a, const Fp8Tensor& b, const at::Tensor& bias,
                         at::ScalarType out);

}  // namespace lathe
