// Declares the matmul ceiling. MFU is the FLOP rate of a run, divided by this ceiling. On a CPU,
// the ceiling is the best rate ever measured for a combination of CPU model, instructions, threads
// and dtype, since a busy machine measures rates that are too low and never too high. The ceiling
// is kept in the cache folder ($LATHE_CACHE, default ~/.cache/lathe). On a GPU, the ceiling is the
// published dense bfloat16 rate of the GPU model.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace lathe {

/// Holds the highest known rate of matmuls.
struct MatmulCeiling {
  double rate = 0;       ///< FLOP/s
  int measurements = 0;  ///< number of measurements; 0 if `rate` is the published rate of a GPU

  /// Returns whether there were so few measurements that the rate may be too low, and MFU too high.
  bool is_provisional() const { return measurements == 1 || measurements == 2; }
};

/// Returns the ceiling; nullopt if it is not known. Measures nothing. `dtype` is the dtype that
/// Autocast takes. If a CPU computes matmuls of `dtype` in another dtype, returns the ceiling of
/// that other dtype.
std::optional<MatmulCeiling> known_peak(const std::string& device, int threads,
                                        at::ScalarType dtype);
/// Measures a square matmul for about a second on the CPU. Stores and returns the best rate so far.
/// Logs a warning if the file in the cache folder can't be written.
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
  /// If the ceiling is unknown or provisional, measures it for the next run. Call it at the end of
  /// a run, which took `run_seconds`. Does nothing after a run of up to a minute, since the
  /// measurement would noticeably delay its end.
  void measure_for_next_run(double run_seconds) const;

 private:
  std::string device_;
  int threads_;
  at::ScalarType dtype_;
  std::optional<MatmulCeiling> known_;
  bool measured_again_ = false;
};

}  // namespace lathe
