#include "train/simulate/search.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace lathe {
namespace {

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> low, high;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d != n / d) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

/// The degrees of data, tensor, context and pipeline parallelism. If several layouts have the same
/// degrees, the results show one of these layouts.
using Division = std::tuple<int64_t, int64_t, int64_t, int64_t>;

Division division_of(const ParallelLayout& l) { return {l.data, l.tensor, l.context, l.pipeline}; }

class Search {
 public:
  Search(const ClusterModel& cluster, const StepWorkload& step, const LayoutRequest& request)
      : cluster_(cluster), step_(step), request_(request) {}

  LayoutSearch run(size_t most);

 private:
  void try_division(ParallelLayout layout);
  void try_layout(const ParallelLayout& layout);
  std::vector<int64_t> micro_batches(const ParallelLayout& layout) const;
  std::vector<int64_t> virtual_stages(const ParallelLayout& layout) const;

  const ClusterModel& cluster_;
  const StepWorkload& step_;
  const LayoutRequest& request_;
  std::map<Division, RatedLayout> fitting_, smallest_;
  std::map<std::string, RefusedLayouts> refused_;
  int64_t tried_ = 0;
};

std::vector<int64_t> Search::micro_batches(const ParallelLayout& layout) const {
  if (request_.micro_batch) return {*request_.micro_batch};
  std::vector<int64_t> sizes;
  const int64_t share = step_.global_batch / layout.data;
  for (int64_t b = 1; b <= std::min<int64_t>(share, 64); b *= 2) {
    if (share % b == 0) sizes.push_back(b);
  }
  if (sizes.empty()) sizes.push_back(1);
  return sizes;
}

std::vector<int64_t> Search::virtual_stages(const ParallelLayout& layout) const {
  if (request_.virtual_stages) return {*request_.virtual_stages};
  std::vector<int64_t> parts{1};
  for (int64_t v = 2; v <= 8 && layout.pipeline > 1; ++v) {
    if (step_.shape.layers % (layout.pipeline * v) == 0) parts.push_back(v);
  }
  return parts;
}

void Search::try_layout(const ParallelLayout& layout) {
  ++tried_;
  if (const std::string fault = layout_fault(layout, step_); !fault.empty()) {
    RefusedLayouts& same = refused_.try_emplace(fault).first->second;
    same.reason = fault;
    if (same.count++ == 0) same.example = layout.text();
    return;
  }

  const RatedLayout rated{layout, estimate_step(cluster_, step_, layout)};
  if (rated.estimate.fits()) {
    const auto [at, is_new] = fitting_.try_emplace(division_of(layout), rated);
    if (!is_new && rated.estimate.seconds < at->second.estimate.seconds) at->second = rated;
  } else {
    const auto [at, is_new] = smallest_.try_emplace(division_of(layout), rated);
    if (!is_new && rated.estimate.memory.total() < at->second.estimate.memory.total())
      at->second = rated;
  }
}

void Search::try_division(ParallelLayout layout) {
  // If layout_fault() refuses the smallest micro-batch and the fewest virtual stages, it refuses
  // all layouts with these degrees, so try only this layout.
  layout.micro_batch = micro_batches(layout).front();
  const std::vector<int64_t> parts = virtual_stages(layout);
  layout.virtual_stages = parts.front();
  if (!layout_fault(layout, step_).empty()) return try_layout(layout);

  for (const int64_t micro : micro_batches(layout)) {
    for (const int64_t v : parts) {
      // With interleaved stages, the number of micro-batches must be a multiple of the number of
      // stages.
      const int64_t count = step_.global_batch / (layout.data * micro);
      if (!request_.virtual_stages && v > 1 && count % layout.pipeline != 0) continue;
      for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
        for (int64_t shard = 0; shard <= 3; ++shard) {
          layout.micro_batch = micro;
          layout.virtual_stages = v;
          layout.recompute = mode;
          layout.shard = shard;
          // ZeRO shards among data x context GPUs. If there is only one such GPU, ZeRO does
          // nothing.
          const bool is_same = layout.data * layout.context == 1 && shard > 0 && !request_.shard;
          if (request_.admits(layout) && !is_same) try_layout(layout);
        }
      }
    }
  }
}

LayoutSearch Search::run(size_t most) {
  const int64_t gpus = cluster_.gpus();
  for (const int64_t tensor : divisors(gpus)) {
    if (request_.tensor ? tensor != *request_.tensor : tensor > 2 * cluster_.gpus_per_node)
      continue;
    for (const int64_t context : divisors(gpus / tensor)) {
      if (request_.context ? context != *request_.context : context > 64) continue;
      for (const int64_t pipeline : divisors(gpus / tensor / context)) {
        ParallelLayout layout;
        layout.tensor = tensor;
        layout.context = context;
        layout.pipeline = pipeline;
        layout.data = gpus / tensor / context / pipeline;
        const bool is_wanted = (!request_.pipeline || pipeline == *request_.pipeline) &&
                               (!request_.data || layout.data == *request_.data);
        if (is_wanted) try_division(layout);
      }
    }
  }

  LayoutSearch found;
  found.tried = tried_;
  for (const auto& [division, rated] : fitting_) found.fastest.push_back(rated);
  for (const auto& [division, rated] : smallest_) {
    if (!fitting_.contains(division)) found.too_large.push_back(rated);
  }
  for (const auto& [reason, same] : refused_) found.refused.push_back(same);
  std::stable_sort(
      found.refused.begin(), found.refused.end(),
      [](const RefusedLayouts& a, const RefusedLayouts& b) { return a.count > b.count; });
  if (found.refused.size() > most) found.refused.resize(most);

  for (auto* list : {&found.fastest, &found.too_large}) {
    std::stable_sort(list->begin(), list->end(), [](const RatedLayout& a, const RatedLayout& b) {
      return a.estimate.seconds < b.estimate.seconds;
    });
    if (list->size() > most) list->resize(most);
  }
  return found;
}

}  // namespace

LayoutSearch search_layouts(const ClusterModel& cluster, const StepWorkload& step,
                            const LayoutRequest& request, size_t most) {
  return Search(cluster, step, request).run(most);
}

}  // namespace lathe
