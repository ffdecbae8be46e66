// Updates the running statistics of layers, such as those of batch norm.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/mode.h"

namespace lathe {

/// An update of a running statistic by the statistic of a batch.
struct RunningStatistic {
  at::Tensor running;  ///< updated in place
  at::Tensor value;    ///< the batch's statistic
  double momentum = 0;
  at::Tensor count{};  ///< int64 [], counts the batches; may be undefined
};

/// Sets `running` to (1 - momentum) running + momentum value, in place.
inline void move_running(const at::Tensor& running, const at::Tensor& value, double momentum) {
  running.mul_(1 - momentum).add_(value, momentum);
}

/// Applies an update.
inline void apply_running(const RunningStatistic& s) {
  move_running(s.running, s.value, s.momentum);
  if (s.count.defined()) s.count.add_(1);
}

/// Updates a running statistic immediately. If Mode::running_statistics is set, appends the update
/// to it instead. Does nothing while a forward pass is recomputed.
inline void record_running(const RunningStatistic& s) {
  if (mode().is_recomputing) return;
  if (mode().running_statistics != nullptr) {
    mode().running_statistics->push_back(s);
    return;
  }
  apply_running(s);
}

}  // namespace lathe
