// Defines updates of the running statistics of layers such as batch norm.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/mode.h"

namespace lathe {

/// An update of a running statistic with the statistic of a batch.
struct RunningStatistic {
  at::Tensor running;  ///< the running statistic, which is updated in place
  at::Tensor value;    ///< the statistic of the batch
  double momentum = 0;
  at::Tensor count{};  ///< the number of batches, int64 []; undefined if batches are not counted
};

/// Sets `running` to (1 - momentum) running + momentum value, in place.
inline void move_running(const at::Tensor& running, const at::Tensor& value, double momentum) {
  running.mul_(1 - momentum).add_(value, momentum);
}

/// Applies an update immediately.
inline void apply_running(const RunningStatistic& s) {
  move_running(s.running, s.value, s.momentum);
  if (s.count.defined()) s.count.add_(1);
}

/// Applies an update immediately, or appends it to Mode::running_statistics if that list is not
/// null. Does nothing while a forward pass is recomputed.
inline void record_running(const RunningStatistic& s) {
  if (mode().is_recomputing) return;
  if (mode().running_statistics != nullptr) {
    mode().running_statistics->push_back(s);
    return;
  }
  apply_running(s);
}

}  // namespace lathe
