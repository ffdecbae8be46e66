// metrics.csv, a row a logged step, and evaluations.csv, a row an evaluation, for spreadsheets and
// data frames.
#include <cstdlib>

#include "core/io/text.h"
#include "train/store/sinks.h"

namespace lathe {
namespace {

/// The shortest decimal that reads back as the same number, or nan, inf, -inf.
std::string number_text(double x) {
  std::string text;
  for (int digits = 15; digits <= 17 && (text.empty() || std::strtod(text.c_str(), nullptr) != x);
       ++digits)
    text = format("%.*g", digits, x);
  return text;
}

class Csv final : public MetricsSink {
 public:
  explicit Csv(const SinkOptions& o)
      : unit_(o.unit), steps_(open(o, "metrics.csv")), evaluations_(open(o, "evaluations.csv")) {}

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
    std::string head = "step,", row = std::to_string(step) + ",";
    for (const auto& [name, value] : metrics) head += name + ",", row += number_text(value) + ",";
    if (evaluations_.length() == 0) evaluations_.write(head + "time\n");
    evaluations_.write(row + number_text(unix_seconds()) + "\n");
  }

  void add_lengths(FileLengths& lengths) const override {
    lengths["metrics.csv"] = steps_.length();
    lengths["evaluations.csv"] = evaluations_.length();
  }
  uint64_t sync() override { return steps_.sync() + evaluations_.sync(); }

 private:
  static ResumableFile open(const SinkOptions& o, const std::string& name) {
    return {o.run / name, o.length(name), o.run / (name + ".old"), whole_lines};
  }

  std::string unit_;
  ResumableFile steps_, evaluations_;
};

}  // namespace

std::unique_ptr<MetricsSink> open_csv(const SinkOptions& options) {
  return std::make_unique<Csv>(options);
}

}  // namespace lathe
