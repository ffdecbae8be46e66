#include "train/loop/saver.h"

#include <system_error>
#include <utility>

#include "core/io/log.h"
#include "core/io/text.h"
#include "core/timing.h"
#include "train/loop/stop.h"

namespace lathe {
namespace {

/// Adds the seconds for which this object existed to `sum`.
class Timer {
 public:
  explicit Timer(double& sum) : sum_(sum) {}
  ~Timer() { sum_ += seconds_since(begin_); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double& sum_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

CheckpointSaver::CheckpointSaver(fs::path run, const CheckpointConfig& config, int64_t saved_step)
    : run_(std::move(run)),
      keep_{config.keep, config.keep_every, config.keep_best},
      dtype_(save_dtype(config)),
      async_(config.async_save),
      saved_step_(saved_step) {}

CheckpointSaver::~CheckpointSaver() {
  try {
    wait();
  } catch (const Error& e) {
    // The training loop fails with its own error if a rank is lost, so do not report it twice.
    if (e.code() != Exit::peer_lost) log_warn(e.what());
  } catch (const std::exception& e) {
    log_warn(e.what());
  }
}

void CheckpointSaver::save(const RunState& state, const std::vector<NamedParameter>& parameters,
                           const Optimizer& optimizer, std::function<void()> before, bool now) {
  if (is_writing() && !now && ++times_.waits == 1) {
    log_info("step ", state.step, ": the checkpoint of step ", next_step_,
             " is still being written, and training waits for it; checkpoint.interval is shorter "
             "than a save takes");
  }

  wait();
  ++times_.saves;
  if (!async_ || now) {
    const Timer timer(times_.write_s);
    const DeferSignals whole;
    before();
    log(Level::debug,
        "saved " + save_checkpoint(run_, state, parameters, optimizer, keep_, dtype_).string());
    saved_step_ = state.step;
    note_saved(state.step);
    return;
  }

  // Never write weights that are not finite.
  const Timer timer(times_.copy_s);
  check_finite(parameters, state.step, dtype_);
  copy_ = copy_state(parameters, optimizer, dtype_, std::move(copy_));
  fault_point("save: copied");

  try {
    in_progress_ = std::async(std::launch::async, [this, state, before = std::move(before)] {
      const DeferSignals whole;
      before();
      log(Level::debug, "saved " + store_checkpoint(run_, state, copy_, keep_).string());
      note_saved(state.step);
    });
  } catch (const std::system_error& e) {
    fail(Exit::memory, "cannot start the thread that saves checkpoints: ", e.code().message(),
         "; raise the limit of processes and threads (ulimit -u), or set checkpoint.async_save = "
         "false");
  }
  next_step_ = state.step;
}

void CheckpointSaver::before_update() {
  if (!is_writing()) return;
  const Timer timer(times_.copy_s);
  copy_.live->copy_rest();
}

bool CheckpointSaver::is_writing() const {
  return in_progress_.valid() &&
         in_progress_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

int64_t CheckpointSaver::saved_step() {
  if (!is_writing()) wait();
  return saved_step_;
}

void CheckpointSaver::wait() {
  if (!in_progress_.valid()) return;
  const Timer timer(times_.wait_s);
  if (is_writing()) fault_point("save: waiting");
  const int64_t step = std::exchange(next_step_, -1);
  in_progress_.get();
  saved_step_ = step;
}

void CheckpointSaver::finish() {
  wait();
  if (times_.saves == 0) return;
  const double run = seconds_since(begin_);
  const double all = times_.copy_s + times_.wait_s + times_.write_s;
  log_info(
      "saved     ", quantity(times_.saves, "checkpoint"),
      format("; training waited %.2f s for saves, %.2f%% of the time", all, 100 * all / run),
      async_
          ? format(" (copies %.2f s, %lld waits for previous saves %.2f s, the last save %.2f s)",
                   times_.copy_s, static_cast<long long>(times_.waits), times_.wait_s,
                   times_.write_s)
          : "");
}

}  // namespace lathe
