// Records what each thread of a process did and when, for `lathe profile`.
#pragma once

#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/timing.h"

namespace lathe {

/// The name of work in the loops of core/parallel.h.
inline constexpr std::string_view loop_work = "loop";

/// A log of the work of threads. While a log is active(), loops (core/parallel.h) and data workers
/// record their work in it. Thread-safe.
class ThreadLog {
 public:
  /// An interval in which a thread was working.
  struct Work {
    std::string_view what;  ///< loop_work or "data worker"; must be a literal
    int thread;             ///< index among the threads that do this work: 0, 1, ...
    Clock::time_point begin, end;
  };
  /// An interval from a loop's start until its last thread was done.
  struct Loop {
    Clock::time_point begin, end;
  };

  /// Returns the log in which work is currently recorded, or null. Assign a log to the result to
  /// record there.
  static std::atomic<ThreadLog*>& active() {
    static std::atomic<ThreadLog*> log{nullptr};
    return log;
  }

  /// Records an interval of work.
  void add(const Work& work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(work);
  }
  /// Records a loop.
  void add(const Loop& loop) {
    const std::lock_guard lock(mutex_);
    loops_.push_back(loop);
  }
  /// Returns and clears what was recorded.
  std::pair<std::vector<Work>, std::vector<Loop>> take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(works_, {}), std::exchange(loops_, {})};
  }

 private:
  std::mutex mutex_;
  std::vector<Work> works_;
  std::vector<Loop> loops_;
};

/// While alive, measures the calling thread's work, and records it when destroyed. Does nothing if
/// `log` is null.
class RecordWork {
 public:
  RecordWork(ThreadLog* log, std::string_view what, int thread)
      : log_(log), work_{what, thread, {}, {}} {
    if (log_ != nullptr) work_.begin = Clock::now();
  }
  ~RecordWork() {
    if (log_ == nullptr) return;
    work_.end = Clock::now();
    log_->add(work_);
  }
  RecordWork(const RecordWork&) = delete;
  RecordWork& operator=(const RecordWork&) = delete;

 private:
  ThreadLog* log_;
  ThreadLog::Work work_;
};

}  // namespace lathe
