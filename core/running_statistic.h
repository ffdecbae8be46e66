// Running statistics of layers, such as batch norm's, and when they move.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/mode.h"

namespace lathe {

/// A batch's statistic, on its way into a running one.
struct RunningStatistic {
  at::Tensor running;  ///< moved in place
  at::Tensor value;    ///< of the batch
  double momentum = 0;
  at::Tensor count{};  ///< int64 [], counts the batches; may be undefined
};

/// Moves `running` to (1 - momentum) running + momentum value.
inline void move_running(const at::Tensor& running, const at::Tensor& value, double momentum) {
  running.mul_(1 - momentum).add_(value, momentum);
}

/// Moves a running statistic immediately, or records it where Mode::running_statistics is set.
inline void record_running(const RunningStatistic& s) {
  if (mode().running_statistics != nullptr) {
    mode().running_statistics->push_back(s);
    return;
  }
  move_running(s.running, s.value, s.momentum);
  if (s.count.defined()) s.count.add_(1);
}

}  // namespace lathe
