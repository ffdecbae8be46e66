// What a person sees of a run: its facts at the start, the line of a step.
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

/// Model, data, device, precision and folder; `from`: the checkpoint that it resumes from, or "";
/// `source`: of the weights that it began with, or "".
void log_header(const Session& session, const Data& data, const MfuBaseline& baseline,
                const std::string& run, const std::string& from, const std::string& source);

/// Logs what reading and writing the session's scratch files took, where it has any.
void log_offload(const Session& session);

/// data.verify(stop) with a progress bar. `folder`: where the data is.
void verify_shown(const Data& data, const fs::path& folder,
                  const std::function<bool()>& stop = nullptr);

/// "validation loss 1.2345, accuracy 0.9000".
std::string metrics_text(const std::vector<Metric>& metrics);

/// A bar on a terminal; elsewhere a line every ten seconds.
class StepLine {
 public:
  /// Of a run of `steps` steps that begins after step `done`, with `units` tokens or samples,
  /// called `unit`, in each.
  StepLine(int64_t steps, int64_t done, double units, std::string unit);
  /// `seconds`: what the step took; what is shown is smoothed. `keep`: a line for the log file as
  /// well.
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
