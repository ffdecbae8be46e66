// Records which work each thread of a process did and when, for `lathe profile`.
#pragma once

#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/timing.h"

namespace lathe {

/// The value of Work::what for the loops of core/parallel.h.
inline constexpr std::string_view loop_work = "loop";

/// A log of the work of threads. While active() points to a log, loops (core/parallel.h) and data
/// workers record their work in this log. Thread-safe.
class ThreadLog {
 public:
  /// An interval in which a thread was working.
  struct Work {
    std::string_view what;  ///< loop_work or "data worker"; must be a literal
    int thread;             ///< index of the thread among the threads that do this work: 0, 1, ...
    Clock::time_point begin, end;
  };
  /// The interval from the start of a loop until all threads have finished their parts of the loop.
  struct Loop {
    Clock::time_point begin, end;
  };

  /// Returns a reference to the pointer to the log in which work is currently recorded. The pointer
  /// is null if work is not recorded. To start recording, assign the address of a log to the
  /// pointer.
  static std::atomic<ThreadLog*>& active() {
    static std::atomic<ThreadLog*> log{nullptr};
    return log;
  }

  /// Records an interval of work.
  void add(const Work& work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(work);
  }
  /// Records the interval of a loop.
  void add(const Loop& loop) {
    const std::lock_guard lock(mutex_);
    loops_.push_back(loop);
  }
  /// Returns the recorded intervals and removes them from the log.
  std::pair<std::vector<Work>, std::vector<Loop>> take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(works_, {}), std::exchange(loops_, {})};
  }

 private:
  std::mutex mutex_;
  std::vector<Work> works_;
  std::vector<Loop> loops_;
};

/// Records the interval from its construction to its destruction as work of a thread. Does nothing
/// if `log` is null.
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
