// The matmul ceiling that MFU is measured against. On a CPU it is measured once for each (CPU model, threads, dtype)
// and kept in the cache folder ($LATHE_CACHE, default ~/.cache/lathe); on a card it is the dense bf16 figure of its
// kind.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace lathe {

/// FLOP/s, where known; never a guess. `dtype` is what Autocast takes; on a CPU the ceiling is that of the dtype in
/// which its products are taken.
std::optional<double> known_peak(const std::string& device, int threads, at::ScalarType dtype);
/// Measures a square matmul for about a second, stores the best rate and returns it. CPU only.
double measure_peak(int threads, at::ScalarType dtype);

}  // namespace lathe
