// Reads the curves and states of run folders without changing the folders. The runs may still be
// training, or may have been written by an older build.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lathe {

/// Holds values by step, in the order of the file.
struct Series {
  std::vector<int64_t> steps;
  std::vector<double> values;
};

/// Returns the lowest value that is a number, with its step. If all values are NaN, returns the
/// first value. The series must not be empty.
std::pair<int64_t, double> lowest(const Series& series);
/// Returns json_number(*x), or a JSON null if `x` is empty.
Json number_or_null(const std::optional<double>& x);

/// Holds the curves in the metrics.jsonl of a run, as far as the file is written.
class Curves {
 public:
  /// Prepares to read the curves of `run`; call read() to read them. Throws Exit::usage if the
  /// folder has neither metrics.jsonl nor config.toml.
  explicit Curves(const fs::path& run);
  /// Reads the complete lines that were added since the last call. If a resumed run has truncated
  /// the file since then, reads the file again from its start. Returns whether anything changed.
  /// Throws Exit::io with the line's number for a malformed line.
  bool read();

  /// The series by the keys of metrics.jsonl. Statistics of layers have the keys
  /// "layers/STATISTIC/LAYER", statistics of processes "ranks/STATISTIC/RANK", and
  /// categories of memory "memory/NAME".
  std::map<std::string, Series> series;
  /// Describes a key of the config that changed when the run was resumed after `step`.
  struct Change {
    int64_t step = 0;
    std::string key, was, is;
  };
  std::vector<Change> changes;
  /// The unit of throughput: "tokens" or "samples".
  std::string unit = "tokens";

  const fs::path& run() const { return run_; }
  /// Returns the series with this name, or null if there is none.
  const Series* find(const std::string& name) const;
  /// Returns the series of validation losses: "val_loss" or, for a regression, "mse". Returns null
  /// if there is none.
  const Series* validation() const { return find("val_loss") ? find("val_loss") : find("mse"); }

 private:
  void add(const Json& line, const std::string& where);

  fs::path run_;
  uint64_t offset_ = 0;    // offset of the next line
  std::string last_line_;  // the line before offset_, with its line break
  int64_t lines_ = 0;
  Json memory_ = Json::object();  // the value of "memory" in the last line that has this key
};

/// Returns the keys of a run folder's config.toml with their values as TOML text. Returns no keys
/// if there is no such file.
std::map<std::string, std::string> config_keys(const fs::path& run);
/// Returns the keys that differ between runs, each with the values of all runs; the value is "" if
/// a run does not have the key. Leaves out train.out_dir, the path of a run.
std::vector<std::pair<std::string, std::vector<std::string>>> differing_keys(
    const std::vector<fs::path>& runs);

/// Holds the state and last metrics of a run.
struct RunSummary {
  fs::path run;
  std::string state;  ///< running, paused (train.pause_at), stopped, finished,
                      ///< diverged, imported or merged
  int64_t step = 0, steps = 0;
  std::optional<double> loss{}, val_loss{}, best_val_loss{}, units_per_sec{}, mfu{};
  std::string unit = "tokens";
  double age_s = 0;  ///< seconds since the last line of metrics.jsonl; NaN if there is no such file
};
/// Reads the end of metrics.jsonl and the newest checkpoint's state. A run counts as running while
/// a process of this machine holds its lock. A run on a shared file system may also be training on
/// another machine. Therefore, a run that has neither finished nor diverged also counts as running
/// if the last line of metrics.jsonl is less than a minute old, and belongs to a step after the
/// newest checkpoint and before the last step of the run.
RunSummary summarize(const fs::path& run);
/// Receives a sentence about a folder or run that can't be read.
using ReportUnreadable = std::function<void(const std::string& why)>;
/// Returns the runs in `folder` and its subfolders, in the order of their paths. Does not follow
/// links. A folder that can't be read is left out and reported to `report`. If there is no
/// `report`, throws an error for such a folder.
std::vector<fs::path> find_runs(const fs::path& folder, const ReportUnreadable& report = nullptr);
/// Returns summarize() of each run. A run that can't be read is left out and reported to `report`.
std::vector<RunSummary> summarize(const std::vector<fs::path>& runs,
                                  const ReportUnreadable& report);

}  // namespace lathe
