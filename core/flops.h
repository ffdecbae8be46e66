// Defines counts of floating-point operations (FLOPs), which are computed from shapes. A
// multiply-add counts as two FLOPs. The FLOPs of matmuls are counted separately, because MFU (model
// FLOPs utilization) counts only matmuls. The formula of 6 FLOPs per parameter and token also
// predicts only the FLOPs of matmuls.
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

/// The FLOPs of one op in the forward pass and in the backward pass.
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
