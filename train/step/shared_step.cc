#include "train/step/shared_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <numeric>
#include <utility>

#include "autograd/fp8.h"
#include "autograd/node.h"
#include "core/tree_sum.h"
#include "dist/world.h"

namespace lathe {

namespace {

/// Calls f(rank, n) for all micro-batches of a step, in their order. `n` is the index of the
/// micro-batch among the micro-batches of the rank.
template <class F>
void each_micro_batch(const BatchPlan& plan, F&& f) {
  const int ranks = world().data().size;
  for (int64_t i = 0; i < ranks * plan.count; ++i) {
    // With a stride, ranks take turns. Otherwise, each rank computes consecutive micro-batches.
    if (plan.stride > 1)
      f(i % ranks, i / ranks);
    else
      f(i / plan.count, i % plan.count);
  }
}

}  // namespace

DeferRunningStatistics::DeferRunningStatistics(const BatchPlan& plan) : plan_(plan) {
  mode().running_statistics = &recorded_;
}

void DeferRunningStatistics::apply(const at::Tensor& skipped) {
  if (skipped.is_cpu()) {
    if (skipped.item<int64_t>() == 0) apply_recorded();
  } else {
    // Only the GPU knows the decision, so it also chooses between the old and the new values.
    std::vector<std::pair<at::Tensor, at::Tensor>> changing;  // tensors and copies of their values
    for (const RunningStatistic& s : recorded_) {
      for (const at::Tensor& t : {s.running, s.count}) {
        if (t.defined()) changing.emplace_back(t, t.clone());
      }
    }
    apply_recorded();
    for (const auto& [t, old] : changing) t.copy_(at::where(skipped.ne(0), old, t));
  }
  recorded_.clear();
}

void DeferRunningStatistics::apply_recorded() {
  if (recorded_.empty()) return;
  if (world().data().size < 2) {
    for (const RunningStatistic& s : recorded_) apply_running(s);
    return;
  }

  // The gathered tensor has the shape [ranks, elements]. Each rank recorded the same layers in the
  // same order for each of its micro-batches.
  std::vector<at::Tensor> mine;
  for (const RunningStatistic& s : recorded_) mine.push_back(s.value.reshape({-1}));
  const at::Tensor all = world().gather_over_data(at::cat(mine).unsqueeze(0));

  const auto layers = std::ssize(recorded_) / plan_.count;
  const int64_t elements = all.size(1) / plan_.count;  // number of elements of a micro-batch
  each_micro_batch(plan_, [&](int64_t rank, int64_t n) {
    int64_t offset = n * elements;
    for (int64_t layer = n * layers; layer < (n + 1) * layers; ++layer) {
      const RunningStatistic& s = recorded_[static_cast<size_t>(layer)];
      const at::Tensor value = all.select(0, rank).narrow(0, offset, s.value.numel());
      apply_running({.running = s.running,
                     .value = value.view(s.value.sizes()),
                     .momentum = s.momentum,
                     .count = s.count});
      offset += s.value.numel();
    }
  });
}

at::Tensor sum_of_losses(const std::vector<at::Tensor>& losses, const BatchPlan& plan) {
  const auto plus = [](const at::Tensor& a, const at::Tensor& b) { return a.add(b); };
  if (plan.in_sequence)
    return std::accumulate(losses.begin() + 1, losses.end(), losses.at(0), plus);

  TreeSum<at::Tensor> sum;
  if (world().data().size == 1) {
    for (const at::Tensor& loss : losses) sum.add(loss, plus);
  } else {
    const at::Tensor all = world().gather_over_data(at::stack(losses));
    each_micro_batch(plan, [&](int64_t rank, int64_t n) {
      sum.add(all.select(0, rank * plan.count + n), plus);
    });
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
