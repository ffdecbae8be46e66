// The search for the fastest layouts of a cluster that fit.
#pragma once

#include <string>
#include <vector>

#include "train/simulate/estimate.h"

namespace lathe {

/// A layout and what it takes.
struct RatedLayout {
  ParallelLayout layout{};
  StepEstimate estimate{};
};

/// Layouts that do not work, and the reason that they share.
struct RefusedLayouts {
  std::string reason;
  int64_t count = 0;
  std::string example;  ///< one of them, as `--layout` takes it
};

/// What a search found.
struct LayoutSearch {
  std::vector<RatedLayout> fastest{};     ///< that fit, fastest first
  std::vector<RatedLayout> too_large{};   ///< fastest first, of each division of the GPUs one: the
                                          ///< layout that needs the least memory
  std::vector<RefusedLayouts> refused{};  ///< by the number of layouts
  int64_t tried = 0;                      ///< layouts
};

/// Tries all layouts that the request admits: degrees that divide the number of GPUs, stages of
/// ZeRO, micro-batches by powers of two, recomputation. Returns at most `most` of those that fit,
/// of those that don't, and of the reasons against the others; of the layouts of one division into
/// data, tensor, context and pipeline parallelism only the fastest.
LayoutSearch search_layouts(const ClusterModel& cluster, const StepWorkload& step,
                            const LayoutRequest& request, size_t most);

}  // namespace lathe
