// What each thread of a process did when, while `lathe profile` looks.
#pragma once

#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/timing.h"

namespace lathe {

/// Of the threads of core/parallel.h.
inline constexpr std::string_view loop_work = "loop";

/// While one is set, loops (core/parallel.h) and data workers note their work in it. From any
/// thread.
class ThreadLog {
 public:
  /// A stretch in which a thread had work.
  struct Work {
    std::string_view what;  ///< loop_work, "data worker"; a literal
    int thread;             ///< of those that do it: 0, 1, ...
    Clock::time_point begin, end;
  };
  /// A loop from its start until its last thread was ready.
  struct Loop {
    Clock::time_point begin, end;
  };

  /// Where work is noted now, or null.
  static std::atomic<ThreadLog*>& active() {
    static std::atomic<ThreadLog*> log{nullptr};
    return log;
  }

  /// Notes it.
  void add(const Work& work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(work);
  }
  /// Notes it.
  void add(const Loop& loop) {
    const std::lock_guard lock(mutex_);
    loops_.push_back(loop);
  }
  /// What was noted since the last call.
  std::pair<std::vector<Work>, std::vector<Loop>> take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(works_, {}), std::exchange(loops_, {})};
  }

 private:
  std::mutex mutex_;
  std::vector<Work> works_;
  std::vector<Loop> loops_;
};

/// Notes what the calling thread does while this lives; nothing where `log` is null.
class NoteWork {
 public:
  NoteWork(ThreadLog* log, std::string_view what, int thread)
      : log_(log), work_{what, thread, {}, {}} {
    if (log_ != nullptr) work_.begin = Clock::now();
  }
  ~NoteWork() {
    if (log_ == nullptr) return;
    work_.end = Clock::now();
    log_->add(work_);
  }
  NoteWork(const NoteWork&) = delete;
  NoteWork& operator=(const NoteWork&) = delete;

 private:
  ThreadLog* log_;
  ThreadLog::Work work_;
};

}  // namespace lathe
