// Runs a step without arithmetic and without committing memory. This shows how much memory a run
// will need, even on a machine that has less.
#pragma once

#include <memory>

namespace lathe {

/// Returns whether a DryRun is alive on the calling thread. Kernels then skip their loops.
bool is_dry_run();

/// While alive, the calling thread allocates the same tensors in the same order as a real step, but
/// nothing writes to their memory. The CPU allocator returns reserved addresses and counts them as
/// usual; memory_stats() returns the counts of the dry run. ATen's ops infer the shapes of their
/// results and compute nothing; Lathe's kernels return immediately. Reads give 0, except from
/// tensors of one element that were filled. If the shape of an ATen op's result depends on data,
/// the op really runs and takes real memory. After the end of a dry run, its tensors must not be
/// used, only destroyed. Only one DryRun may be alive in a process.
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
