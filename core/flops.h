// Floating-point operations, counted from shapes. A multiply-add counts as two. The FLOPs of
// matmuls are counted separately: MFU (model FLOPs utilization) is computed from them, and the
// formula of 6 FLOPs per parameter and token predicts them.
#pragma once

namespace lathe {

struct Flops {
  double matmul = 0;
  double other = 0;

  Flops& operator+=(const Flops& o) {
    matmul += o.matmul;
    other += o.other;
    return *this;
  }
};

/// The FLOPs of one op: those of a forward pass, and those of its backward pass.
struct OpFlops {
  Flops forward, backward;
};

/// Totals over several ops.
struct FlopCount {
  Flops forward, backward;
  double matmul() const { return forward.matmul + backward.matmul; }
  /// Returns all FLOPs, forward and backward.
  double total() const { return matmul() + forward.other + backward.other; }
};

}  // namespace lathe
