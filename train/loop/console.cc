#include "train/loop/console.h"

#include <algorithm>
#include <cmath>

#include "core/device.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "dist/world.h"

namespace lathe {

void log_header(const Session& session, const Data& data, const MfuMeter& meter,
                const std::string& run, const std::string& from, const std::string& source) {
  const RunConfig& c = session.config;
  const std::string unit = session.task.unit();
  const auto all = static_cast<double>(count(parameters(*session.model)));
  const auto trained = static_cast<double>(count(session.params));
  std::string sizes;
  for (const Field& f : c.model.own.schema().fields()) {
    const int64_t* const size = c.model.own.find<int64_t>(f.key);
    if (size != nullptr && *size != 0)  // 0 means that the size follows from other keys, or has no
                                        // effect
      sizes += str(", ", f.key, " ", *size);
  }

  log_info("model     ", c.model.kind, ", ", count_text(all), " parameters",
           trained < all ? " (" + count_text(trained) + " trained)" : "", sizes);
  log_info("data      ", c.data.dir, ", ", data.train_size(), " training ", unit,
           data.val_size() > 0 ? str(", ", data.val_size(), " for validation") : "",
           c.data.window > 0 ? str(", windows of ", c.data.window) : "");
  log_info("device    ", device_model(session.device_name),
           session.device.is_cuda()
               ? ""
               : str(", ", quantity(c.train.threads, "thread"), ", ", cpu_isa()));
  log_info("precision ", precision_text(session));
  if (const auto& peak = meter.known(); peak && peak->is_provisional()) {
    log_info("mfu       against a matmul ceiling of ", format("%.0f", peak->rate / 1e9),
             " GFLOP/s that was measured fewer than three times and may be too low; `lathe bench "
             "peak` measures it");
  }

  if (!source.empty()) log_info("weights   ", source);
  log_info("run       ", run, from.empty() ? "" : str(", resuming from ", from));
  if (world().is_writer()) {
    for (const std::string& warning : config_warnings(c)) log_warn(warning);
  }
  log(Level::debug, "parameters\n" + parameter_table(session.params));
}

void log_offload(const Session& session) {
  const StateOffload* const state = session.optimizer.offload();
  const auto report = [](const char* what, const TransferTimes& times) {
    if (times.transfer_s > 0) log_info("offload   ", what, ": ", times.text());
  };
  if (state != nullptr) report("optimizer", state->times());
  if (session.activations) report("activations", session.activations->times());
}

void verify_with_progress(const Data& data, const fs::path& folder,
                          const std::function<bool()>& stop) {
  double bytes = 0, done = 0;
  std::error_code error;
  // The sources of a mixture are in subfolders.
  for (const auto& file : fs::recursive_directory_iterator(folder, error)) {
    if (file.is_regular_file(error)) bytes += static_cast<double>(file.file_size(error));
  }
  ProgressBar bar("checking " + folder.string(), bytes);
  data.verify([&] {  // called every 16 MiB
    bar.show(std::min(done, bytes));
    done += 0x1p24;
    return stop && stop();
  });
}

std::string metrics_text(const std::vector<Metric>& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics)
    text += (text.empty() ? "" : ", ") + (name == "val_loss" ? "validation loss" : name) +
            // printf() may print a sign in front of nan.
            (std::isnan(value) ? " nan" : format(" %.4f", value));
  return text;
}

StepLine::StepLine(int64_t steps, int64_t done, double units, std::string unit)
    : steps_(steps),
      units_(units),
      unit_(std::move(unit)),
      bar_("", static_cast<double>(steps), static_cast<double>(done)) {}

void StepLine::show(const StepMetrics& m, double seconds, bool keep) {
  smooth_s_ = smooth_s_ == 0 ? seconds : 0.9 * smooth_s_ + 0.1 * seconds;
  const bool print = !is_terminal() && Clock::now() - printed_ >= std::chrono::seconds(10);
  if (!keep && !print && !is_terminal()) return;
  const std::string step =
      format("step %lld/%lld", static_cast<long long>(m.step), static_cast<long long>(steps_));
  std::vector<std::string> facts{format("loss %.4f", m.loss), format("lr %.2e", m.lr),
                                 format("%.0f %s/s", units_ / smooth_s_, unit_.c_str())};
  if (m.mfu) facts.push_back(format("mfu %.0f%%", 100 * *m.mfu));
  if (keep || print) {
    std::string line = step;
    for (const std::string& fact : facts) line += "  " + fact;
    if (keep) log(Level::debug, line);
    if (print) {
      log_info(line);
      printed_ = Clock::now();
    }
  }
  const auto bytes = static_cast<double>(m.memory_bytes);
  facts.push_back(bytes < 1e8 ? format("%.1f MB", bytes / 1e6) : format("%.2f GB", bytes / 1e9));
  facts.push_back(format("data wait %.0f%%", 0.1 * m.data_wait_ms / seconds));
  bar_.rename(step);
  bar_.show(static_cast<double>(m.step), facts, smooth_s_ * static_cast<double>(steps_ - m.step));
}

}  // namespace lathe
