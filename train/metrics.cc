#include "train/metrics.h"

#include <chrono>

#include "core/io/json.h"

namespace lathe {
namespace {

fs::path cut_back(const fs::path& path, uint64_t length) {
  std::error_code error;
  const uint64_t has = fs::exists(path) ? fs::file_size(path) : 0;
  if (has < length) {
    fail(Exit::checkpoint, path.string(), " has ", has, " bytes and the checkpoint was written at ", length,
         "; restore the file, or give another --train.out_dir with --checkpoint.resume and the checkpoint's path");
  }
  if (has > length) {
    fs::resize_file(path, length, error);
    if (error) fail(Exit::io, "cannot cut back ", path.string(), ": ", error.message());
  }
  return path;
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Metrics::Metrics(const fs::path& run, uint64_t length)
    : file_(cut_back(run / "metrics.jsonl", length), OutputFile::Open::append) {}

void Metrics::add(const StepMetrics& m) {
  const Json json{{"step", m.step},
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
