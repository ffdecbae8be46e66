// What the stages of a pipeline (dist.pipeline) send each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "core/element_range.h"
#include "dist/placement.h"

namespace lathe {

/// The connections of this process's stage to the stages before and after it.
class StageLink {
 public:
  StageLink();

  int rank() const { return place_.rank; }
  bool is_first() const { return place_.rank == 0; }
  bool is_last() const { return place_.rank + 1 == place_.size; }
  /// Returns the seconds that receive() and receive_activations() have waited.
  double waited() const { return waited_; }

  /// Starts to send the output of this stage's blocks, which is contiguous, to the next stage.
  /// Returns a function that waits until it was received; it must be called.
  std::function<void()> send_activations(const at::Tensor& y) const;
  /// Returns what the stage before has sent so, on the device of `x`.
  at::Tensor receive_activations(const at::Tensor& x);
  /// Fills `t`, whose sizes and dtype are those of what the stage `from` sends.
  void receive(at::Tensor& t, int from);

 private:
  RankAxis place_;
  double waited_ = 0;
};

/// Returns which of a model's `n` blocks a stage runs: [first, end). `own`: the blocks whose
/// parameters it has. Throws Exit::internal if the last stage would leave some out.
std::pair<size_t, size_t> blocks_of_stage(const StageLink& link, ElementRange own, size_t n);

}  // namespace lathe
