// Defines loops that run on ATen's threads.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#include "core/dry_run.h"
#include "core/thread_log.h"

namespace lathe {

/// Calls f(first, last) on ATen's threads for parts of [begin, end). The number of parts is at most
/// (end - begin) / grain, rounded up. Does nothing in a dry run. All parallel loops of Lathe's
/// kernels use this function.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (is_dry_run()) return;
  ThreadLog* log = ThreadLog::active().load(std::memory_order_relaxed);
  if (log != nullptr && at::in_parallel_region()) log = nullptr;  // only the outer loop is recorded
  const Clock::time_point start = log != nullptr ? Clock::now() : Clock::time_point();
  at::parallel_for(begin, end, grain, [&f, log](int64_t first, int64_t last) {
    const RecordWork note(log, loop_work, log != nullptr ? at::get_thread_num() : 0);
    f(first, last);
  });
  if (log != nullptr) log->add(ThreadLog::Loop{start, Clock::now()});
}

}  // namespace lathe
