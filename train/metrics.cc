#include "train/metrics.h"

#include <chrono>

#include "core/io/json.h"
#include "core/io/log.h"

namespace lathe {
namespace {

uint64_t bytes_of(const fs::path& path) {
  if (!fs::exists(path)) return 0;
  if (!fs::is_regular_file(path))
    fail(Exit::io, path.string(), " is not a regular file; remove it and run the same command again");
  return fs::file_size(path);
}

fs::path cut_back(const fs::path& run, uint64_t length) {
  Metrics::check_length(run, length);
  const fs::path path = run / "metrics.jsonl";
  const uint64_t has = bytes_of(path);
  if (has == length) return path;
  if (length == 0) {
    const fs::path old = path.string() + ".old";
    rename_file(path, old);
    log_info("no checkpoint goes with the lines of ", path.string(), ": kept as ", old.filename().string());
  } else {
    cut_file(path, length);
    log_info("cut ", path.string(), " back by ", has - length, " bytes, to the checkpoint");
  }
  return path;
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void Metrics::check_length(const fs::path& run, uint64_t length) {
  const fs::path path = run / "metrics.jsonl";
  if (const uint64_t has = bytes_of(path); has < length) {
    fail(Exit::checkpoint, path.string(), " has ", has, " bytes and the checkpoint was written at ", length,
         "; restore the file, or branch off with --checkpoint.resume=CHECKPOINT and another --train.out_dir");
  }
}

Metrics::Metrics(const fs::path& run, uint64_t length) : file_(cut_back(run, length), OutputFile::Open::append) {}

void Metrics::add(const StepMetrics& m) {
  Json json{{"step", m.step},
            {"updates", m.updates},
            {"loss", json_number(m.loss)},
            {"lr", m.lr},
            {"grad_norm", json_number(m.grad_norm)},
            {"tokens", m.tokens},
            {"tokens_per_sec", m.tokens_per_sec},
            {"step_ms", m.step_ms},
            {"mfu", m.mfu ? Json(*m.mfu) : Json()},
            {"data_wait_ms", m.data_wait_ms},
            {"memory_bytes", m.memory_bytes},
            {"loss_scale", m.loss_scale},
            {"time", unix_seconds()}};
  if (m.skipped > 0) json["skipped"] = m.skipped;
  if (m.updates_lost) json["updates_lost"] = *m.updates_lost;
  file_.write(json.dump() + "\n");
}

void Metrics::add_validation(int64_t step, double loss) {
  file_.write(Json{{"step", step}, {"val_loss", json_number(loss)}, {"time", unix_seconds()}}.dump() + "\n");
}

uint64_t Metrics::sync() {
  file_.sync();
  return file_.size();
}

}  // namespace lathe
