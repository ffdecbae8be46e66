// What run folders tell of runs, read without touching them, also while they train or by an earlier
// build.
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

/// Values by step, in the order of the file.
struct Series {
  std::vector<int64_t> steps;
  std::vector<double> values;
};

/// The step of the lowest value that is a number, and the value; of NaNs alone the first. Not of an
/// empty series.
std::pair<int64_t, double> lowest(const Series& series);
/// As json_number; null for nothing.
Json number_or_null(const std::optional<double>& x);

/// metrics.jsonl of a run, as far as it is written.
class Curves {
 public:
  /// Nothing is read yet. Exit::usage where the folder holds no metrics.jsonl and no config.toml.
  explicit Curves(const fs::path& run);
  /// Reads the complete lines that were added since; a file that was cut back is read again from
  /// its start. Returns whether anything changed. Exit::io with the line where one is none of ours.
  bool read();

  /// By the keys of metrics.jsonl; figures of layers as "layers/FIGURE/LAYER", categories of memory
  /// as "memory/NAME".
  std::map<std::string, Series> series;
  /// Where the config was changed on the way: key, was, is.
  struct Change {
    int64_t step = 0;
    std::string key, was, is;
  };
  std::vector<Change> changes;
  /// "tokens" or "samples".
  std::string unit = "tokens";

  const fs::path& run() const { return run_; }
  /// The series of that name, or null.
  const Series* find(const std::string& name) const;

 private:
  void add(const Json& line, const std::string& where);

  fs::path run_;
  uint64_t offset_ = 0;
  int64_t lines_ = 0;
  Json memory_ = Json::object();  // as last told
};

/// The keys of a run folder's config.toml, as TOML text; nothing where there is none.
std::map<std::string, std::string> config_keys(const fs::path& run);
/// Keys that differ between runs, each with the values of all; "" where a run does not have the
/// key. What only says where a run lies (train.out_dir) is left out.
std::vector<std::pair<std::string, std::vector<std::string>>> differing_keys(
    const std::vector<fs::path>& runs);

/// A run at a glance.
struct RunSummary {
  fs::path run;
  std::string state;  ///< running, paused (train.pause_at), stopped, finished,
                      ///< diverged or imported
  int64_t step = 0, steps = 0;
  std::optional<double> loss{}, val_loss{}, best_val_loss{}, units_per_sec{}, mfu{};
  std::string unit = "tokens";
  double age_s = 0;  ///< since the last line of metrics.jsonl
};
/// Reads the end of metrics.jsonl and the newest checkpoint's state. A run is running while its
/// lock is held, as this machine's kernel tells, or where the last line is younger than a minute
/// and neither end is known: a run on another machine, over a file share.
RunSummary summarize(const fs::path& run);
/// Takes a sentence about a folder or run that can't be read.
using ReportUnreadable = std::function<void(const std::string& why)>;
/// Returns the runs in `folder` and below, in the order of their paths; links are not followed.
/// What can't be read is reported and left out; without `report` it is an error.
std::vector<fs::path> find_runs(const fs::path& folder, const ReportUnreadable& report = nullptr);
/// Returns summarize() of these runs. What can't be read is reported and left out.
std::vector<RunSummary> summarize(const std::vector<fs::path>& runs,
                                  const ReportUnreadable& report);

}  // namespace lathe
