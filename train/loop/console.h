// Declares the console output of a run: a header at the start, and the progress during the run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/io/progress.h"
#include "core/timing.h"
#include "data/data.h"
#include "train/session/peak.h"
#include "train/session/session.h"
#include "train/store/metrics.h"

namespace lathe {

/// Logs the model, data, device, precision and folder of a run. `from` is the checkpoint that the
/// run resumes from, or "" for a new run. `source` is the source of the run's initial weights, or
/// "" if train.init_from names no source.
void log_header(const Session& session, const Data& data, const MfuMeter& meter,
                const std::string& run, const std::string& from, const std::string& source);

/// Logs statistics of the transfers of offloaded optimizer state and activations. Logs nothing if
/// there were no transfers.
void log_offload(const Session& session);

/// Calls data.verify(stop) and shows a progress bar. `folder` is the folder of the data.
void verify_with_progress(const Data& data, const fs::path& folder,
                          const std::function<bool()>& stop = nullptr);

/// Returns a text such as "validation loss 1.2345, accuracy 0.9000".
std::string metrics_text(const std::vector<Metric>& metrics);

/// Shows the progress of a run: a bar on a terminal, otherwise a line every ten seconds.
class StepLine {
 public:
  /// Prepares for a run of `steps` steps that continues after step `done`. Each step has `units`
  /// tokens or samples, which `unit` names.
  StepLine(int64_t steps, int64_t done, double units, std::string unit);
  /// Shows the metrics of a step that took `seconds`, with a smoothed throughput. If `keep` is
  /// true, also writes a line to the log file.
  void show(const StepMetrics& m, double seconds, bool keep);

 private:
  int64_t steps_;
  double units_;
  std::string unit_;
  double smooth_s_ = 0;
  ProgressBar bar_;
  Clock::time_point printed_{};
};

}  // namespace lathe
