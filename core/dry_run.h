// Runs a step without its memory and its arithmetic, which shows what a run will need, even on a
// machine that could not run it.
#pragma once

#include <memory>

namespace lathe {

/// Returns whether the calling thread is within a DryRun, in which kernels skip their loops.
bool is_dry_run();

/// While alive, the calling thread allocates the same tensors in the same order as a real step, at
/// addresses that nobody writes to. The CPU's allocator hands out reserved addresses and counts as
/// usual (memory_stats() is the dry run's). ATen's ops infer the shapes of their results and
/// compute nothing; Lathe's kernels return immediately. Reads give 0, except from tensors of one
/// element that were filled. An op of ATen whose result's shape depends on data runs, and takes
/// real memory. Tensors of a dry run must not be used after its end, only destroyed. Only one may
/// be alive in a process.
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
