// Floating-point operations, counted from shapes. A multiply-add is two. Matmul FLOPs are kept
// apart: they are what MFU is made of, and what the 6N formula predicts.
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

/// What one op costs: a forward pass, and the backward of one forward.
struct OpFlops {
  Flops forward, backward;
};

/// Totals of a stretch of work.
struct FlopCount {
  Flops forward, backward;
  double matmul() const { return forward.matmul + backward.matmul; }
  /// Products of matrices and attention, forward and backward.
  double total() const { return matmul() + forward.other + backward.other; }
};

}  // namespace lathe
