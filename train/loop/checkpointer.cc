#include "train/loop/checkpointer.h"

#include "dist/world.h"

namespace lathe {
namespace {

/// Throws Exit::diverged on all ranks if a parameter on any rank is not finite. This call is a
/// collective.
void check_finite_on_all(const Session& s, int64_t step) {
  std::string fault;
  try {
    check_finite(s.saved, step);
  } catch (const Error& e) {
    fault = e.what();
  }
  for (const std::string& one : world().gather_texts(fault)) {
    if (!one.empty()) fail(Exit::diverged, one);
  }
}

}  // namespace

void Checkpointer::save(bool now) {
  newest_ = state_.step;
  // Under sharding, pipeline and tensor parallelism, the writer does not have all parameters.
  if (session_.shards || session_.stage || world().tensor().size > 1)
    check_finite_on_all(session_, state_.step);
  const bool is_divided = divides_state(session_.optimizer);
  if (lock_ == nullptr && !is_divided) return;
  world().note(state_.step, RankPhase::saving);
  if (lock_ == nullptr) {
    saver_.save(state_, session_.saved, session_.optimizer, [] {}, now);
    return;
  }

  FileLengths lengths;
  metrics_.add_lengths(lengths);
  state_.metrics_bytes = lengths.extract("metrics.jsonl").mapped();
  // `lengths` lacks metrics files that are turned off, so the state keeps their earlier lengths.
  for (const auto& [file, bytes] : lengths) state_.sink_bytes[file] = bytes;

  const auto before = [this] {
    lock_->check_in_place();
    metrics_.sync();
  };
  saver_.save(state_, session_.saved, session_.optimizer, before, now);
}

void Checkpointer::save_last(bool now) {
  // If no step was made since the newest save, the newest checkpoint is current.
  if (newest_ != state_.step) save(now);
  saver_.finish();
  world().wait_for_all();
}

void Checkpointer::finish() {
  saver_.finish();
  if (lock_ != nullptr) lock_->check_in_place();
  world().wait_for_all();
}

}  // namespace lathe
