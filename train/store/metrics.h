// What a run writes as it goes: the interface of its sinks, and the first of them, metrics.jsonl:
// one JSON object a logged step, {step, val_loss, ...} objects at evaluations, and {step, changed}
// objects where a run resumed with another config. The table of sinks is in train/store/sinks.cc.
//
// A sink with per-step data uses a ResumableFile, whose length each checkpoint stores
// (metrics_bytes, sink_bytes), so after a kill each step occurs once. A disabled sink keeps its
// length for when it is enabled again. `memory` is written when a peak changed since the last line.
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

/// Figures of one layer after a step (log.layers); what a layer does not have is absent.
struct LayerFigures {
  std::string layer;                    ///< its path in the model
  std::optional<double> weight_norm{};  ///< of its parameters together, after the update
  std::optional<double> grad_norm{};    ///< of their gradients, unscaled and before clipping
  std::optional<double>
      update_ratio{};  ///< norm of the step's update over that of the weights before it
  std::optional<double>
      act_max{};  ///< largest magnitude of what it returned for the first micro-batch
  std::optional<double> dead{};  ///< share of its activation's units that fired for none of it
};

/// What one process of a run on several spent in a step.
struct RankFigures {
  double busy_ms = 0;  ///< its own work
  double wait_ms = 0;  ///< waiting for gradients of the others, beyond what its own work hid
  int64_t memory_bytes = 0;
  int64_t sent_bytes = 0;  ///< to the others, of gradients and parameters
};

struct StepMetrics {
  int64_t step = 0, updates = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  int64_t units = 0;  ///< tokens or samples so far
  double units_per_sec = 0, step_ms = 0;
  std::optional<double> mfu;  ///< null where the device's ceiling is not known
  double data_wait_ms = 0;
  int64_t memory_bytes = 0;
  double loss_scale = 1;  ///< that the step used
  int64_t skipped = 0;  ///< steps so far whose update was skipped for gradients that are not finite
  int64_t spikes = 0;   ///< steps so far whose update was left out for their loss
  std::optional<double>
      updates_lost{};  ///< low-precision parameters: share of elements whose update rounding undid
  std::vector<RankFigures> ranks{};    ///< in the order of ranks; empty in a single process
  std::vector<LayerFigures> layers{};  ///< where this step looked at them
  /// On a CPU, the most that each category of memory (core/memory.h) held at once; empty where it
  /// is as last told.
  std::vector<std::pair<std::string, int64_t>> memory{};
};

/// The figures of a layer that are there, by their names.
std::vector<std::pair<std::string, double>> named_stats(const LayerFigures& layer);

/// Lengths of files that are cut back, by their path in the run folder.
using FileLengths = std::map<std::string, uint64_t>;

/// Something that a run writes to as it goes. One is a file in this folder and a line in the table
/// of sinks.cc; what it has no use for it passes over. A file that tells of steps is a
/// ResumableFile, so that a run that was killed and goes on leaves each step once.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void add(const StepMetrics&) {}
  /// The figures of an evaluation, by their names.
  virtual void add_validation(int64_t, const std::vector<std::pair<std::string, double>>&) {}
  /// What was trained from then on with other values of the config's keys.
  virtual void add_changes(int64_t, const std::vector<ConfigChange>&) {}
  /// What a person is shown of the model.
  virtual void add_sample(int64_t, const std::string&) {}
  /// Of weights and gradients.
  virtual void add_histograms(int64_t, const std::vector<Histogram>&) {}
  /// A process begins to train after this step, with the checkpoint that it resumes from, or "".
  virtual void add_start(int64_t, const std::string&) {}
  /// Adds the lengths so far of the files that a checkpoint keeps the length of.
  virtual void add_lengths(FileLengths&) const {}
  /// Waits until the disk has what was written. Another thread may add lines meanwhile.
  virtual uint64_t sync() { return 0; }
};

/// A file that grows while a run trains, and is cut back to its length in the checkpoint that the
/// run resumes from.
class ResumableFile {
 public:
  /// Opens the file cut back to `length` bytes, and says so. At 0, what no checkpoint goes with is
  /// set aside as `aside`. A file that is shorter, or gone, is a warning: the run continues with
  /// what is intact of it, up to `whole(bytes)`.
  ResumableFile(const fs::path& path, uint64_t length, const fs::path& aside,
                uint64_t (*whole)(std::string_view bytes));
  void write(std::string_view text) { file_.write(text); }
  uint64_t length() const { return file_.size(); }
  /// Syncs, and returns the length.
  uint64_t sync();

 private:
  OutputFile file_;
};
/// The end of the last whole line.
uint64_t whole_lines(std::string_view text);
/// Now, since 1970.
double unix_seconds();

/// metrics.jsonl.
class Metrics final : public MetricsSink {
 public:
  /// Cut back to `length` bytes, as ResumableFile. `unit`: what throughput counts, "tokens" or
  /// "samples".
  Metrics(const fs::path& run, uint64_t length, const std::string& unit = "tokens");
  void add(const StepMetrics& m) override;
  void add_validation(int64_t step,
                      const std::vector<std::pair<std::string, double>>& figures) override;
  void add_changes(int64_t step, const std::vector<ConfigChange>& changes) override;
  void add_lengths(FileLengths& lengths) const override { lengths["metrics.jsonl"] = length(); }
  /// Bytes so far.
  uint64_t length() const { return file_.length(); }
  /// Syncs, and returns the length.
  uint64_t sync() override { return file_.sync(); }

 private:
  ResumableFile file_;
  std::string unit_;
};

}  // namespace lathe
