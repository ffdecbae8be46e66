// Implements the sink that writes CSV files for spreadsheets and data frames: metrics.csv, with a
// row for each logged step, and evaluations.csv, with a row for each evaluation.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/io/text.h"
#include "train/store/sinks.h"

namespace lathe {
namespace {

/// Returns the shortest decimal that is read back as the same number. Returns nan, inf or -inf for
/// numbers that are not finite.
std::string number_text(double x) {
  if (std::isnan(x)) return "nan";  // printf() may print a sign
  std::string text;
  for (int digits = 15; digits <= 17 && (text.empty() || std::strtod(text.c_str(), nullptr) != x);
       ++digits)
    text = format("%.*g", digits, x);
  return text;
}

/// Returns the names of metrics in the first line of evaluations.csv, "step,NAME,...,time".
std::vector<std::string> metrics_in_head(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::istringstream head(line);
  std::vector<std::string> names;
  for (std::string name; std::getline(head, name, ',');) {
    if (name != "step" && name != "time") names.push_back(name);
  }
  return names;
}

class Csv final : public MetricsSink {
 public:
  explicit Csv(const SinkOptions& o)
      : unit_(o.unit), steps_(open(o, "metrics.csv")), evaluations_(open(o, "evaluations.csv")) {
    if (evaluations_.length() > 0) names_ = metrics_in_head(o.run / "evaluations.csv");
  }

  void add(const StepMetrics& m) override {
    if (steps_.length() == 0) {
      steps_.write("step,updates,loss,lr,grad_norm," + unit_ + "," + unit_ +
                   "_per_sec,step_ms,mfu,data_wait_ms,memory_bytes,loss_scale,skipped,spikes,"
                   "updates_lost,time\n");
    }
    std::string row;
    const auto whole = [&](int64_t x) { row += std::to_string(x) + ","; };
    const auto real = [&](const std::optional<double>& x) {
      row += (x ? number_text(*x) : "") + ",";
    };
    whole(m.step), whole(m.updates), real(m.loss), real(m.lr), real(m.grad_norm), whole(m.units);
    real(m.units_per_sec), real(m.step_ms), real(m.mfu), real(m.data_wait_ms),
        whole(m.memory_bytes);
    real(m.loss_scale), whole(m.skipped), whole(m.spikes), real(m.updates_lost);
    steps_.write(row + number_text(unix_seconds()) + "\n");
  }

  void add_validation(int64_t step,
                      const std::vector<std::pair<std::string, double>>& metrics) override {
    // The metrics of the first evaluation become the columns. A later evaluation of few batches may
    // lack some of these metrics, such as the loss of a small source of a mixture.
    if (names_.empty()) {
      for (const auto& [name, value] : metrics) names_.push_back(name);
      std::string head = "step,";
      for (const std::string& name : names_) head += name + ",";
      evaluations_.write(head + "time\n");
    }
    std::string row = std::to_string(step) + ",";
    for (const std::string& name : names_) {
      const auto found = std::ranges::find(metrics, name, &std::pair<std::string, double>::first);
      row += (found == metrics.end() ? "" : number_text(found->second)) + ",";
    }
    evaluations_.write(row + number_text(unix_seconds()) + "\n");
  }

  void add_lengths(FileLengths& lengths) const override {
    lengths["metrics.csv"] = steps_.length();
    lengths["evaluations.csv"] = evaluations_.length();
  }
  uint64_t sync() override { return steps_.sync() + evaluations_.sync(); }

 private:
  static ResumableFile open(const SinkOptions& o, const std::string& name) {
    return {o.run / name, o.length(name), o.run / (name + ".old"), complete_lines_end};
  }

  std::string unit_;
  ResumableFile steps_, evaluations_;
  std::vector<std::string> names_;  // names of the metrics in evaluations.csv
};

}  // namespace

std::unique_ptr<MetricsSink> open_csv(const SinkOptions& options) {
  return std::make_unique<Csv>(options);
}

}  // namespace lathe
