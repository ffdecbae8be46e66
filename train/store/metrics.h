// metrics.jsonl: one JSON object a logged step, {step, val_loss, ...} objects at evaluations, and {step, changed}
// objects where a run went on with another config.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/io/file.h"
#include "train/store/checkpoint.h"

namespace lathe {

struct StepMetrics {
  int64_t step = 0, updates = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  int64_t units = 0;  ///< tokens or samples so far
  double units_per_sec = 0, step_ms = 0;
  std::optional<double> mfu;  ///< null where the device's ceiling is not known
  double data_wait_ms = 0;
  int64_t memory_bytes = 0;
  double loss_scale = 1;                 ///< that the step used
  int64_t skipped = 0;                   ///< steps so far whose update was skipped for gradients that are not finite
  int64_t spikes = 0;                    ///< steps so far whose update was left out for their loss
  std::optional<double> updates_lost{};  ///< low-precision parameters: share of elements whose update rounding undid
};

class Metrics {
 public:
  /// Opens the file cut back to `length` bytes, and says so. At 0, lines that no checkpoint goes with are set aside as
  /// metrics.jsonl.old. A file that is shorter, or gone, is a warning: the run goes on with the whole lines there are.
  /// `unit`: what throughput counts, "tokens" or "samples".
  Metrics(const fs::path& run, uint64_t length, const std::string& unit = "tokens");
  void add(const StepMetrics& m);
  /// The figures of an evaluation, by their names.
  void add_validation(int64_t step, const std::vector<std::pair<std::string, double>>& figures);
  /// What was trained from then on with other values of the config's keys.
  void add_changes(int64_t step, const std::vector<ConfigChange>& changes);
  /// Bytes so far.
  uint64_t length() const { return file_.size(); }
  /// Syncs, and returns the length. Another thread may add lines meanwhile.
  uint64_t sync();

 private:
  OutputFile file_;
  std::string unit_;
};

}  // namespace lathe
