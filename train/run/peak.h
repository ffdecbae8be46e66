// The matmul ceiling that MFU is measured against. On a CPU it is the best rate ever measured for a
// (CPU model, instructions, threads, dtype), kept in the cache folder ($LATHE_CACHE, default
// ~/.cache/lathe), since a busy machine measures too low and never too high; on a GPU it is the
// dense bf16 figure of its kind.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace lathe {

struct MatmulCeiling {
  double rate = 0;       ///< FLOP/s
  int measurements = 0;  ///< that it is the best of; 0: a GPU's published figure

  /// Measured so seldom that it may be too low, and MFU too high.
  bool young() const { return measurements == 1 || measurements == 2; }
};

/// Where known; never a guess. `dtype` is what Autocast takes; on a CPU the ceiling is that of the
/// dtype in which its products are taken.
std::optional<MatmulCeiling> known_peak(const std::string& device, int threads,
                                        at::ScalarType dtype);
/// Measures a square matmul for about a second and keeps the best rate so far, which it returns.
/// Where that can't be written, a warning says so. CPU only.
MatmulCeiling measure_peak(int threads, at::ScalarType dtype);

/// The ceiling of one run, which is measured again where the run passes it. What goes wrong with
/// that is a warning.
class MfuBaseline {
 public:
  MfuBaseline(std::string device, int threads, at::ScalarType dtype);
  const std::optional<MatmulCeiling>& known() const { return known_; }
  /// MFU of a step at `rate` FLOP/s; nullopt where no ceiling is known. The first rate above it
  /// says that it was measured on a busy machine: then it is measured again, which takes a second
  /// and is logged.
  std::optional<double> share(double rate);
  /// At the end of a run of so many seconds: one that was long enough not to notice measures for
  /// the next one.
  void remember(double run_seconds) const;

 private:
  std::string device_;
  int threads_;
  at::ScalarType dtype_;
  std::optional<MatmulCeiling> known_;
  bool measured_again_ = false;
};

}  // namespace lathe
