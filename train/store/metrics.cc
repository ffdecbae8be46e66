#include "train/store/metrics.h"

#include <chrono>

#include "core/io/json.h"
#include "core/io/log.h"
#include "train/store/run_folder.h"

namespace lathe {
namespace {

uint64_t bytes_of(const fs::path& path) {
  if (!fs::exists(path)) return 0;
  if (!fs::is_regular_file(path))
    fail(Exit::io, path.string(),
         " is not a regular file; remove it and run the same command again");
  return fs::file_size(path);
}

/// Truncates or renames the file at `path`, as ResumableFile's constructor documents. Returns
/// `path`.
fs::path truncate_to_checkpoint(const fs::path& path, uint64_t length, const fs::path& aside,
                                uint64_t (*whole)(std::string_view)) {
  const uint64_t has = bytes_of(path);
  if (has < length) {
    log_warn(path.string(), has == 0 ? str(" is gone") : str(" has ", has, " bytes"), " but had ",
             length, " bytes at the checkpoint: records are lost; training is not affected");
    length = has == 0 ? 0 : whole(read_file(path, Exit::io, uint64_t{1} << 40));
  }
  if (has == length) return path;
  if (length == 0) {
    move_to_backup(path, aside);
    return path;
  }
  truncate_file(path, length);
  log_info("cut ", path.string(), " back by ", has - length, " bytes, to the checkpoint");
  return path;
}

}  // namespace

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

uint64_t complete_lines_end(std::string_view text) {
  return text.rfind('\n') + 1;  // npos + 1 is 0
}

ResumableFile::ResumableFile(const fs::path& path, uint64_t length, const fs::path& aside,
                             uint64_t (*whole)(std::string_view))
    : file_(truncate_to_checkpoint(path, length, aside, whole), OutputFile::Open::append) {}

uint64_t ResumableFile::sync() {
  file_.sync();
  return file_.size();
}

std::vector<std::pair<std::string, double>> named_stats(const LayerStats& layer) {
  std::vector<std::pair<std::string, double>> stats;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) stats.emplace_back(name, *value);
  };
  add("weight_norm", layer.weight_norm);
  add("grad_norm", layer.grad_norm);
  add("update_ratio", layer.update_ratio);
  add("act_max", layer.act_max);
  add("dead", layer.dead);
  return stats;
}

Metrics::Metrics(const fs::path& run, uint64_t length, const std::string& unit)
    : file_(run / "metrics.jsonl", length, run / "metrics.jsonl.old", complete_lines_end),
      unit_(unit) {}

void Metrics::add(const StepMetrics& m) {
  Json json{{"step", m.step},
            {"updates", m.updates},
            {"loss", json_number(m.loss)},
            {"lr", m.lr},
            {"grad_norm", json_number(m.grad_norm)},
            {unit_, m.units},
            {unit_ + "_per_sec", m.units_per_sec},
            {"step_ms", m.step_ms},
            {"mfu", m.mfu ? Json(*m.mfu) : Json()},
            {"data_wait_ms", m.data_wait_ms},
            {"memory_bytes", m.memory_bytes},
            {"loss_scale", m.loss_scale},
            {"time", unix_seconds()}};

  // Leave out keys that have nothing to report, which keeps most lines short.
  if (m.skipped > 0) json["skipped"] = m.skipped;
  if (m.spikes > 0) json["spikes"] = m.spikes;
  if (m.updates_lost) json["updates_lost"] = *m.updates_lost;
  for (const auto& [category, bytes] : m.memory) json["memory"][category] = bytes;

  for (const RankStats& r : m.ranks) {
    json["ranks"].push_back({{"busy_ms", r.busy_ms},
                             {"wait_ms", r.wait_ms},
                             {"memory_bytes", r.memory_bytes},
                             {"sent_bytes", r.sent_bytes}});
  }
  for (const LayerStats& layer : m.layers) {
    Json& stats = json["layers"][layer.layer] = Json::object();
    for (const auto& [name, value] : named_stats(layer)) stats[name] = json_number(value);
  }

  file_.write(json_text(json) + "\n");
}

void Metrics::add_validation(int64_t step,
                             const std::vector<std::pair<std::string, double>>& metrics) {
  Json json{{"step", step}};
  for (const auto& [name, value] : metrics) json[name] = json_number(value);
  json["time"] = unix_seconds();
  file_.write(json_text(json) + "\n");
}

void Metrics::add_changes(int64_t step, const std::vector<ConfigChange>& changes) {
  Json changed = Json::object();
  for (const auto& c : changes) changed[c.key] = {{"was", c.was}, {"is", c.is}};
  file_.write(json_text(Json{{"step", step}, {"changed", changed}, {"time", unix_seconds()}}) +
              "\n");
}

}  // namespace lathe
