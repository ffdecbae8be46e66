// Writes the metrics of a run to all sinks that the keys of [log] ask for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/store/metrics.h"

namespace lathe {

/// Holds the parameters with which a sink is opened.
struct SinkOptions {
  fs::path run;
  const FileLengths& lengths;  ///< lengths to which files are truncated; a file that is not listed
                               ///< starts empty
  std::string unit;            ///< unit of throughput: "tokens" or "samples"

  uint64_t length(const std::string& file) const {
    const auto found = lengths.find(file);
    return found == lengths.end() ? 0 : found->second;
  }
};

/// Forwards each call to all sinks that the config asks for.
class MetricsSinks final : public MetricsSink {
 public:
  /// Creates an object without sinks, for a rank that does not write the run folder.
  MetricsSinks() = default;
  /// Also truncates the files of sinks that the config no longer asks for, so that they have no
  /// lines of steps that the run repeats.
  MetricsSinks(const LogConfig& config, const SinkOptions& options);
  void add(const StepMetrics& m) override;
  void add_validation(int64_t step,
                      const std::vector<std::pair<std::string, double>>& metrics) override;
  void add_changes(int64_t step, const std::vector<ConfigChange>& changes) override;
  void add_sample(int64_t step, const std::string& text) override;
  void add_histograms(int64_t step, const std::vector<Histogram>& histograms) override;
  void add_start(int64_t step, const std::string& from) override;
  void add_end(int64_t step, Exit code) override;
  void add_lengths(FileLengths& lengths) const override;
  uint64_t sync() override;

 private:
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
};

/// Holds the contents of a run's events.jsonl, except the ends of processes: the steps after which
/// processes began to train, and samples. Omits an incomplete last line, and samples of steps that
/// a resumed run repeated.
struct RunEvents {
  struct Start {
    int64_t step = 0;
    std::string from;  ///< the checkpoint from which the run resumed; "" if it started from the
                       ///< beginning
    double time = 0;
  };
  struct Sample {
    int64_t step = 0;
    std::string text;
  };
  std::vector<Start> starts;
  std::vector<Sample> samples;
};
/// Reads the events of a run. Returns no events if there is no events.jsonl. Throws Exit::io for a
/// malformed line.
RunEvents read_events(const fs::path& run);

}  // namespace lathe
