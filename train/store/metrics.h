// Declares the metrics that a run writes while it trains, the interface of sinks, which receive the
// metrics, and the sink that writes metrics.jsonl. metrics.jsonl has one JSON object for each
// logged step, a {step, val_loss, ...} object for each evaluation, and a {step, changed} object for
// each time that the run resumed with another config. The table of sinks is in
// train/store/sinks.cc.
//
// A sink that writes a file of steps uses a ResumableFile, whose length each checkpoint stores
// (metrics_bytes, sink_bytes), so that the file has each step once, even if the run was killed and
// resumed. The length of a disabled sink's file stays in the checkpoints, and is used when the sink
// is enabled again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"
#include "core/io/tfevents.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Holds statistics of one layer after a step (log.layers). A statistic that the layer does not
/// have is nullopt.
struct LayerStats {
  std::string layer;                    ///< path of the layer in the model
  std::optional<double> weight_norm{};  ///< norm of all parameters of the layer together, after the
                                        ///< update
  std::optional<double> grad_norm{};    ///< norm of the parameters' gradients, unscaled and before
                                        ///< clipping
  std::optional<double>
      update_ratio{};  ///< norm of the step's update over the norm of the weights before the step
  std::optional<double>
      act_max{};  ///< largest magnitude of the layer's output in the first micro-batch of the step
  std::optional<double> dead{};  ///< share of the layer's units that never fired in the step's
                                 ///< first micro-batch
};

/// Holds the time, memory and sent bytes of one process in a step of a run on several processes.
struct RankStats {
  double busy_ms = 0;  ///< time for which this process worked
  double wait_ms = 0;  ///< time for which this process waited for gradients or stages of other
                       ///< processes, without working meanwhile
  int64_t memory_bytes = 0;
  int64_t sent_bytes = 0;  ///< gradients, parameters and activations that were sent to the other
                           ///< processes
};

struct StepMetrics {
  int64_t step = 0, updates = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  int64_t units = 0;  ///< tokens or samples so far
  double units_per_sec = 0, step_ms = 0;
  std::optional<double> mfu;  ///< nullopt if the device's peak rate is not known
  double data_wait_ms = 0;
  int64_t memory_bytes = 0;
  double loss_scale = 1;  ///< loss scale of this step
  int64_t skipped = 0;  ///< number of steps so far whose update was skipped because gradients were
                        ///< not finite
  int64_t spikes = 0;   ///< number of steps so far whose update was skipped because of a loss spike
  std::optional<double>
      updates_lost{};  ///< share of low-precision elements whose update was rounded away
  std::vector<RankStats> ranks{};    ///< in the order of ranks; empty in a single process
  std::vector<LayerStats> layers{};  ///< statistics in steps that log.layers selects; otherwise
                                     ///< empty
  /// On a CPU, the peak of each category of memory (core/memory.h), in bytes; empty if no peak has
  /// changed since the previous line.
  std::vector<std::pair<std::string, int64_t>> memory{};
};

/// Returns the statistics that a layer has, with their names.
std::vector<std::pair<std::string, double>> named_stats(const LayerStats& layer);

/// Lengths to which files are truncated on resume, by their path in the run folder.
using FileLengths = std::map<std::string, uint64_t>;

/// Receives the metrics of a run and writes them to an output. Each sink has a source file in
/// train/store/ and a line in the table of sinks.cc, and overrides the functions for the data that
/// it writes.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void add(const StepMetrics&) {}
  /// Adds the metrics of an evaluation after the given step, with their names.
  virtual void add_validation(int64_t, const std::vector<std::pair<std::string, double>>&) {}
  /// Adds the keys of the config whose values change after the given step.
  virtual void add_changes(int64_t, const std::vector<ConfigChange>&) {}
  /// Adds generated text or another sample of the model's output.
  virtual void add_sample(int64_t, const std::string&) {}
  /// Adds histograms of weights and gradients.
  virtual void add_histograms(int64_t, const std::vector<Histogram>&) {}
  /// Records that training starts or resumes after the given step. The text names the checkpoint
  /// from which training resumes; it is "" if training starts from the beginning.
  virtual void add_start(int64_t, const std::string&) {}
  /// Records that the process stops training after the given step, and its exit code.
  virtual void add_end(int64_t, Exit) {}
  /// Adds the current lengths of the sink's files that are truncated on resume.
  virtual void add_lengths(FileLengths&) const {}
  /// Syncs the sink's files to the disk and returns their length in bytes. Another thread may add
  /// lines during this call.
  virtual uint64_t sync() { return 0; }
};

/// Appends to a file that grows while a run trains. On resume, the file is truncated to the length
/// that it had at the checkpoint.
class ResumableFile {
 public:
  /// Opens the file for appending. If the file is longer than `length` bytes, truncates it and logs
  /// this. If `length` is 0, an existing file does not belong to the checkpoint and is renamed to
  /// `aside`. If the file is shorter than `length` or missing, logs a warning, and the run
  /// continues with the beginning of the file that consists of complete records. whole(bytes)
  /// returns the length of this beginning.
  ResumableFile(const fs::path& path, uint64_t length, const fs::path& aside,
                uint64_t (*whole)(std::string_view bytes));
  void write(std::string_view text) { file_.write(text); }
  uint64_t length() const { return file_.size(); }
  /// Syncs the file to the disk, and returns its length.
  uint64_t sync();

 private:
  OutputFile file_;
};
/// Returns the length of the text up to the end of its last complete line.
uint64_t complete_lines_end(std::string_view text);
/// Returns the current time in seconds since 1970.
double unix_seconds();

/// Writes metrics.jsonl.
class Metrics final : public MetricsSink {
 public:
  /// Opens the file and truncates it to `length` bytes, with ResumableFile. `unit`: the unit of
  /// throughput, "tokens" or "samples".
  Metrics(const fs::path& run, uint64_t length, const std::string& unit = "tokens");
  void add(const StepMetrics& m) override;
  void add_validation(int64_t step,
                      const std::vector<std::pair<std::string, double>>& metrics) override;
  void add_changes(int64_t step, const std::vector<ConfigChange>& changes) override;
  void add_lengths(FileLengths& lengths) const override { lengths["metrics.jsonl"] = length(); }
  /// Returns the number of bytes that were written so far.
  uint64_t length() const { return file_.length(); }
  /// Syncs the file to the disk, and returns its length.
  uint64_t sync() override { return file_.sync(); }

 private:
  ResumableFile file_;
  std::string unit_;
};

}  // namespace lathe
