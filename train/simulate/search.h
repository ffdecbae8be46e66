// Declares the search for the fastest layouts of a cluster that fit in memory.
#pragma once

#include <string>
#include <vector>

#include "train/simulate/estimate.h"

namespace lathe {

/// Holds a layout and its estimate.
struct RatedLayout {
  ParallelLayout layout{};
  StepEstimate estimate{};
};

/// Counts layouts that do not work for the same reason.
struct RefusedLayouts {
  std::string reason;
  int64_t count = 0;
  std::string example;  ///< one of these layouts, in the form that `--layout` takes
};

/// Holds the result of a search.
struct LayoutSearch {
  std::vector<RatedLayout> fastest{};     ///< layouts that fit in memory, fastest first
  std::vector<RatedLayout> too_large{};   ///< layouts that do not fit in memory, fastest first; of
                                          ///< each division of the GPUs, only the layout that needs
                                          ///< the least memory
  std::vector<RefusedLayouts> refused{};  ///< layouts that do not work, the most frequent reason
                                          ///< first
  int64_t tried = 0;                      ///< number of layouts that were tried
};

/// Tries the layouts that the request admits: degrees that divide the number of GPUs, stages of
/// ZeRO, micro-batches of powers of two up to 64, up to 8 virtual stages, and the modes of
/// recomputation. Unless the request gives them, the tensor degree is at most twice the GPUs of a
/// node, and the context degree is at most 64. Returns at most `most` layouts that fit, at most
/// `most` that do not fit, and at most `most` reasons why layouts do not work. Of each division
/// into data, tensor, context and pipeline parallelism, returns only the fastest layout that fits,
/// or the layout that needs the least memory if no layout of this division fits.
LayoutSearch search_layouts(const ClusterModel& cluster, const StepWorkload& step,
                            const LayoutRequest& request, size_t most);

}  // namespace lathe
