// A step without its memory and its arithmetic: what a run will need can be seen on a machine that
// could not run it.
#pragma once

#include <memory>

namespace lathe {

/// Whether the calling thread is within a DryRun: kernels leave out their loops.
bool is_dry_run();

/// While alive, the calling thread takes the same tensors in the same order as a real step, from
/// addresses that nobody writes to: the CPU's allocator hands out reserved addresses and counts as
/// it always does (memory_stats() is the dry run's), ATen's ops infer the shapes of their results
/// and compute nothing, Lathe's kernels return at once. What is read is 0, but for tensors of one
/// element that were filled. An op of ATen's that can't say its result's shape without its data
/// runs, and takes real memory. Tensors of a dry run must not be used, only dropped, after its end.
/// One at a time in a process.
class DryRun {
 public:
  DryRun();
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

 private:
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace lathe
