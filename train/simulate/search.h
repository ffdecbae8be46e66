// The search for the fastest layouts of a cluster that fit.
#pragma once

#include <string>
#include <vector>

#include "train/simulate/estimate.h"

namespace lathe {

/// A layout and its estimate.
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

/// The result of a search.
struct LayoutSearch {
  std::vector<RatedLayout> fastest{};     ///< that fit, fastest first
  std::vector<RatedLayout> too_large{};   ///< fastest first; of each division of the GPUs, only
                                          ///< the layout that needs the least memory
  std::vector<RefusedLayouts> refused{};  ///< the most frequent reason first
  int64_t tried = 0;                      ///< layouts
};

/// Tries the layouts that the request admits: degrees that divide the number of GPUs, stages of
/// ZeRO, micro-batches of powers of two up to 64, up to 8 virtual stages, and the modes of
/// recomputation. Unless they are given, the tensor degree is at most twice the GPUs of a node, and
/// the context degree at most 64. Returns at most `most` layouts that fit, at most as many that do
/// not fit, and at most as many reasons why others do not work. Of each division into data, tensor,
/// context and pipeline parallelism, returns only the fastest layout that fits, or else the one
/// that needs the least memory.
LayoutSearch search_layouts(const ClusterModel& cluster, const StepWorkload& step,
                            const LayoutRequest& request, size_t most);

}  // namespace lathe
