#include "train/run/shared_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "autograd/fp8.h"
#include "autograd/node.h"
#include "core/tree_sum.h"
#include "dist/world.h"

namespace lathe {

DeferRunningStatistics::DeferRunningStatistics() {
  if (world().size() > 1) mode().running_statistics = &recorded_;
}

void DeferRunningStatistics::apply() {
  if (recorded_.empty()) return;

  // [ranks, elements]: each rank recorded the same layers, in the same order, for each of its
  // micro-batches.
  std::vector<at::Tensor> mine;
  for (const RunningStatistic& s : recorded_) mine.push_back(s.value.reshape({-1}));
  const at::Tensor all = world().gather(at::cat(mine).unsqueeze(0));

  for (int rank = 0; rank < world().size(); ++rank) {
    int64_t offset = 0;
    for (const RunningStatistic& s : recorded_) {
      const int64_t n = s.value.numel();
      const at::Tensor value = all.select(0, rank).narrow(0, offset, n).view(s.value.sizes());
      move_running(s.running, value, s.momentum);
      if (s.count.defined()) s.count.add_(1);
      offset += n;
    }
  }
  recorded_.clear();
}

at::Tensor sum_of_losses(const std::vector<at::Tensor>& losses) {
  const auto plus = [](const at::Tensor& a, const at::Tensor& b) { return a.add(b); };
  TreeSum<at::Tensor> sum;
  if (world().size() == 1) {
    for (const at::Tensor& loss : losses) sum.add(loss, plus);
  } else {
    const at::Tensor all = world().gather(at::stack(losses));
    for (int64_t i = 0; i < all.size(0); ++i) sum.add(all.select(0, i), plus);
  }
  return sum.finish(plus);
}

void share_fp8_history(const std::vector<NamedParameter>& parameters) {
  if (world().size() == 1) return;
  std::vector<at::Tensor> now;
  for (const auto& p : parameters) {
    if (const auto& fp8 = p.parameter.leaf().precision.fp8; fp8 && fp8->history.defined())
      now.push_back(fp8->history.select(1, 0));
  }
  if (now.empty()) return;

  const at::Tensor largest = world().gather(at::cat(now).unsqueeze(0)).amax(0);
  int64_t offset = 0;
  for (at::Tensor& one : now) {
    one.copy_(largest.narrow(0, offset, one.numel()));
    offset += one.numel();
  }
}

}  // namespace lathe
