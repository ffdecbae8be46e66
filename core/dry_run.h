// Declares dry runs. A dry run runs a step without arithmetic and without committing memory. It
// shows how much memory a run will need, even on a machine that has less.
#pragma once

#include <memory>

namespace lathe {

/// Returns whether the calling thread is in a dry run. If it is, kernels skip their loops.
bool is_dry_run();

/// Makes the calling thread do a dry run until this object is destroyed. In a dry run, the thread
/// allocates the same tensors in the same order as in a real step, but nothing writes to their
/// memory. The CPU allocator returns reserved addresses and counts the bytes as usual;
/// memory_stats() returns the counts of the dry run. ATen's ops infer the shapes of their results
/// and compute nothing. Lathe's kernels return immediately. Elements that are read are 0, except in
/// one-element tensors that were filled. If the shape of an ATen op's result depends on data, the
/// op really runs and takes real memory. After the end of the dry run, tensors that were created in
/// it must not be used, only destroyed. A process can have only one DryRun object at a time.
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
