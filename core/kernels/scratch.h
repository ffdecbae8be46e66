// Defines the working memory of kernels that run on several threads.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/parallel.h"

namespace lathe {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

/// Calls f(i) for each i < tasks on ATen's threads. An idle thread takes the next i, so that a slow
/// thread does not delay the other threads. f(i) must have the same result on any thread. Each
/// thread calls done() after its last task.
template <class F, class Done>
void parallel_tasks(int64_t tasks, F&& f, Done&& done) {
  std::atomic<int64_t> next{0};
  parallel_for(0, std::min<int64_t>(tasks, at::get_num_threads()), 1,
               [&](int64_t begin, int64_t end) {
                 // Each thread gets one index of [begin, end) and takes tasks until none is left.
                 // If there is only one thread, this thread gets all indices.
                 for (; begin < end; ++begin) {
                   for (int64_t i = 0; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
                     f(i);
                 }
                 done();
               });
}

/// Working memory with `bytes` bytes for each of ATen's threads. The constructor allocates one
/// block for all threads, so that the memory of a step does not depend on which threads are faster.
class Scratch {
 public:
  explicit Scratch(int64_t bytes)
      : bytes_(round_up(bytes, 64)),
        data_(
            c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes_ * at::get_num_threads()))) {
  }
  /// Returns the calling thread's part of the memory.
  char* mine() const { return static_cast<char*>(data_.get()) + bytes_ * at::get_thread_num(); }

 private:
  int64_t bytes_;
  c10::DataPtr data_;
};

/// Divides a thread's memory into arrays that begin at cache lines. To compute the size of the
/// memory before it is allocated, use a Carver with a null base.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
  template <class T = char>
  T* take(int64_t count) {
    T* at = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return at;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace lathe
