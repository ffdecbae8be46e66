// Floating-point operations, counted from shapes. A multiply-add counts as two. Matmul FLOPs are
// separate: MFU is computed from them, and the 6N formula predicts them.
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
  /// Returns the FLOPs of matmuls, attention and all else, forward and backward.
  double total() const { return matmul() + forward.other + backward.other; }
};

}  // namespace lathe
