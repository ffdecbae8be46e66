// Defines the table of sinks.
#include "train/store/sinks.h"

#include <algorithm>

namespace lathe {

std::unique_ptr<MetricsSink> open_events(const SinkOptions& options);
std::unique_ptr<MetricsSink> open_csv(const SinkOptions& options);
std::unique_ptr<MetricsSink> open_tensorboard(const SinkOptions& options);

namespace {

struct SinkKind {
  bool (*wanted)(const LogConfig& config);
  std::unique_ptr<MetricsSink> (*open)(const SinkOptions& options);
};

const SinkKind table[]{
    {[](const LogConfig&) { return true; },
     [](const SinkOptions& o) -> std::unique_ptr<MetricsSink> {
       return std::make_unique<Metrics>(o.run, o.length("metrics.jsonl"), o.unit);
     }},
    {[](const LogConfig&) { return true; }, open_events},
    {[](const LogConfig& c) { return c.csv; }, open_csv},
    {[](const LogConfig& c) { return c.tensorboard; }, open_tensorboard},
};

/// Truncates the file of a sink that is not open. Leaves the file alone if it is missing or
/// shorter, or if `file` is not the path of a plain file in the run folder.
void cut_unused(const fs::path& run, const fs::path& file, uint64_t length) {
  if (file.is_absolute() || std::ranges::find(file, fs::path("..")) != file.end()) return;
  std::error_code error;
  const fs::path path = run / file;
  if (fs::symlink_status(path, error).type() != fs::file_type::regular) return;
  if (fs::file_size(path, error) > length && !error) truncate_file(path, length);
}

}  // namespace

MetricsSinks::MetricsSinks(const LogConfig& config, const SinkOptions& options) {
  for (const SinkKind& kind : table) {
    if (kind.wanted(config)) sinks_.push_back(kind.open(options));
  }

  FileLengths open;
  add_lengths(open);
  for (const auto& [file, length] : options.lengths) {
    if (!open.contains(file)) cut_unused(options.run, file, length);
  }
}

void MetricsSinks::add(const StepMetrics& m) {
  for (const auto& sink : sinks_) sink->add(m);
}
void MetricsSinks::add_validation(int64_t step,
                                  const std::vector<std::pair<std::string, double>>& metrics) {
  for (const auto& sink : sinks_) sink->add_validation(step, metrics);
}
void MetricsSinks::add_changes(int64_t step, const std::vector<ConfigChange>& changes) {
  for (const auto& sink : sinks_) sink->add_changes(step, changes);
}
void MetricsSinks::add_sample(int64_t step, const std::string& text) {
  for (const auto& sink : sinks_) sink->add_sample(step, text);
}
void MetricsSinks::add_histograms(int64_t step, const std::vector<Histogram>& histograms) {
  for (const auto& sink : sinks_) sink->add_histograms(step, histograms);
}
void MetricsSinks::add_start(int64_t step, const std::string& from) {
  for (const auto& sink : sinks_) sink->add_start(step, from);
}
void MetricsSinks::add_end(int64_t step, Exit code) {
  for (const auto& sink : sinks_) sink->add_end(step, code);
}
void MetricsSinks::add_lengths(FileLengths& lengths) const {
  for (const auto& sink : sinks_) sink->add_lengths(lengths);
}
uint64_t MetricsSinks::sync() {
  uint64_t bytes = 0;
  for (const auto& sink : sinks_) bytes += sink->sync();
  return bytes;
}

}  // namespace lathe
