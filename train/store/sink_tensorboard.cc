// Implements the sink that writes tensorboard/events.out.tfevents.lathe, which holds scalars,
// histograms, and samples and config changes as text. `tensorboard --logdir RUN` shows the file. A
// run has one such file, which is truncated on resume like metrics.jsonl. A TensorBoard that has
// the file open during a resume must be restarted.
#include <algorithm>

#include "core/io/text.h"
#include "train/store/sinks.h"

namespace lathe {
namespace {

const std::string events_name = "tensorboard/events.out.tfevents.lathe";

class TensorBoard final : public MetricsSink {
 public:
  explicit TensorBoard(const SinkOptions& o) : unit_(o.unit), file_(open(o)) {
    if (file_.length() == 0) file_.write(tf_first_event(unix_seconds()));
    sync_folder(o.run / "tensorboard");
  }

  void add(const StepMetrics& m) override {
    std::vector<std::string> values{
        tf_scalar("train/loss", m.loss),
        tf_scalar("train/lr", m.lr),
        tf_scalar("train/grad_norm", m.grad_norm),
        tf_scalar("train/" + unit_, static_cast<double>(m.units)),
        tf_scalar("train/loss_scale", m.loss_scale),
        tf_scalar("speed/" + unit_ + "_per_sec", m.units_per_sec),
        tf_scalar("speed/step_ms", m.step_ms),
        tf_scalar("speed/data_wait_ms", m.data_wait_ms),
        tf_scalar("speed/memory_bytes", static_cast<double>(m.memory_bytes))};
    if (m.mfu) values.push_back(tf_scalar("speed/mfu", *m.mfu));
    if (m.skipped > 0) values.push_back(tf_scalar("train/skipped", static_cast<double>(m.skipped)));
    if (m.spikes > 0) values.push_back(tf_scalar("train/spikes", static_cast<double>(m.spikes)));
    if (m.updates_lost) values.push_back(tf_scalar("train/updates_lost", *m.updates_lost));
    for (const auto& [category, bytes] : m.memory)
      values.push_back(tf_scalar("memory/" + category, static_cast<double>(bytes)));
    for (const LayerStats& layer : m.layers) {
      for (const auto& [statistic, value] : named_stats(layer))
        values.push_back(tf_scalar("layers/" + statistic + "/" + layer.layer, value));
    }
    write(m.step, values);
  }

  void add_validation(int64_t step,
                      const std::vector<std::pair<std::string, double>>& metrics) override {
    std::vector<std::string> values;
    for (const auto& [metric, value] : metrics)
      values.push_back(tf_scalar("evaluation/" + metric, value));
    write(step, values);
  }

  void add_changes(int64_t step, const std::vector<ConfigChange>& changes) override {
    std::string text;
    for (const ConfigChange& c : changes)
      text += str("    ", c.key, " ", c.was, " -> ", c.is, "\n");
    write(step, {tf_text("changed", text)});
  }

  void add_sample(int64_t step, const std::string& text) override {
    std::string block = "    ";  // Markdown shows indented lines unchanged
    for (size_t i = 0; i < text.size();) {
      const size_t n = code_point_length(text, i);
      block += n == 0 ? "\uFFFD" : text.substr(i, n);
      if (text[i] == '\n') block += "    ";
      i += std::max<size_t>(n, 1);
    }
    write(step, {tf_text("sample", block)});
  }

  void add_histograms(int64_t step, const std::vector<Histogram>& histograms) override {
    std::vector<std::string> values;
    for (const Histogram& h : histograms) values.push_back(tf_histogram(h.name, h));
    write(step, values);
  }

  void add_lengths(FileLengths& lengths) const override { lengths[events_name] = file_.length(); }
  uint64_t sync() override { return file_.sync(); }

 private:
  /// Opens the file. The name of the backup must not contain "tfevents", since TensorBoard would
  /// otherwise read the backup.
  static ResumableFile open(const SinkOptions& o) {
    make_folders(o.run / "tensorboard");
    return {o.run / events_name, o.length(events_name), o.run / "tensorboard/events.old",
            complete_tf_records_end};
  }
  void write(int64_t step, const std::vector<std::string>& values) {
    file_.write(tf_event(unix_seconds(), step, values));
  }

  std::string unit_;
  ResumableFile file_;
};

}  // namespace

std::unique_ptr<MetricsSink> open_tensorboard(const SinkOptions& options) {
  return std::make_unique<TensorBoard>(options);
}

}  // namespace lathe
