// The matmul ceiling that MFU is measured against. On a CPU it is the best rate ever measured for a
// (CPU model, instructions, threads, dtype), kept in the cache folder ($LATHE_CACHE, default
// ~/.cache/lathe), since a busy machine measures too low and never too high. On a GPU it is the
// published dense bfloat16 rate of its kind.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace lathe {

/// The highest known rate of matmuls.
struct MatmulCeiling {
  double rate = 0;       ///< FLOP/s
  int measurements = 0;  ///< number of measurements; 0: the rate is the published one of a GPU

  /// Returns whether there were so few measurements that the rate may be too low, and MFU too high.
  bool is_provisional() const { return measurements == 1 || measurements == 2; }
};

/// Returns the ceiling if it is known, else nullopt. Measures nothing. `dtype` is the dtype that
/// Autocast takes; on a CPU the ceiling is that of the dtype in which matmuls are computed.
std::optional<MatmulCeiling> known_peak(const std::string& device, int threads,
                                        at::ScalarType dtype);
/// Measures a square matmul for about a second. Stores and returns the best rate so far. Logs a
/// warning if the rate can't be stored. CPU only.
MatmulCeiling measure_peak(int threads, at::ScalarType dtype);

/// Computes the MFU of a run (model FLOPs utilization).
class MfuMeter {
 public:
  MfuMeter(std::string device, int threads, at::ScalarType dtype);
  const std::optional<MatmulCeiling>& known() const { return known_; }
  /// Returns the MFU of a step at `rate` FLOP/s; nullopt if no ceiling is known. On a CPU, a rate
  /// above the ceiling shows that the machine was busy when the ceiling was measured. At the first
  /// such rate, measures the ceiling again, which takes a second and is logged.
  std::optional<double> mfu(double rate);
  /// Measures the ceiling for the next run, if it is unknown or provisional. Call it at the end of
  /// a run, which took `run_seconds`. Does nothing after a run of up to a minute, which the
  /// measurement would delay noticeably.
  void measure_for_next_run(double run_seconds) const;

 private:
  std::string device_;
  int threads_;
  at::ScalarType dtype_;
  std::optional<MatmulCeiling> known_;
  bool measured_again_ = false;
};

}  // namespace lathe
