// The matmul ceiling that MFU is measured against. On a CPU it is the best rate ever measured for a (CPU model,
// instructions, threads, dtype), kept in the cache folder ($LATHE_CACHE, default ~/.cache/lathe), since a busy machine
// measures too low and never too high; on a card it is the dense bf16 figure of its kind.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace lathe {

struct MatmulCeiling {
  double rate = 0;       ///< FLOP/s
  int measurements = 0;  ///< that it is the best of; 0: a card's published figure

  /// Measured so seldom that it may be too low, and MFU too high.
  bool young() const { return measurements == 1 || measurements == 2; }
};

/// Where known; never a guess. `dtype` is what Autocast takes; on a CPU the ceiling is that of the dtype in which its
/// products are taken.
std::optional<MatmulCeiling> known_peak(const std::string& device, int threads, at::ScalarType dtype);
/// Measures a square matmul for about a second and keeps the best rate so far, which it returns. CPU only.
MatmulCeiling measure_peak(int threads, at::ScalarType dtype);

}  // namespace lathe
