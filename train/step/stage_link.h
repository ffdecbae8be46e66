// Declares StageLink, which sends activations and gradients between the stages of a pipeline
// (dist.pipeline).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <utility>

#include "dist/placement.h"
#include "dist/stage_parameters.h"

namespace lathe {

/// Connects this process's stage with the stages before and after it. With several parts
/// (dist.virtual_stages), the last stage sends to the first stage, which has the next part. With
/// two stages, each stage is both before and after the other, so a schedule must receive in the
/// order in which the other stage sends. Parts of a stage are counted from 0.
class StageLink {
 public:
  /// `stage` must outlive this object.
  explicit StageLink(const StageParameters& stage);

  int parts() const { return stage_.parts(); }
  /// Returns whether a part of this stage has the first block of the model. is_last() returns
  /// whether the part has the last block.
  bool is_first(int part) const { return place_.rank == 0 && part == 0; }
  bool is_last(int part) const { return place_.rank + 1 == place_.size && part + 1 == parts(); }
  /// Returns the range [first, end) of a model's `n` blocks that a part has. Throws Exit::internal
  /// if the stages together do not have exactly `n` blocks.
  std::pair<size_t, size_t> blocks(int part, size_t n) const;
  /// Returns the total time in seconds that calls of the receive functions have taken so far.
  double waited() const { return waited_; }

  /// Starts to send `y`, the output of this stage's blocks, to the next stage. `y` must be
  /// contiguous. Returns a function that waits until `y` was received; the caller must call it.
  std::function<void()> send_activations(const at::Tensor& y) const;
  /// Waits for the activations that the previous stage sends with send_activations(), and returns
  /// them on the device of `x`.
  at::Tensor receive_activations(const at::Tensor& x);
  /// Starts to send the gradient of received activations to the previous stage. Returns a function
  /// that waits until the gradient was received; the caller must call it.
  std::function<void()> send_gradient(const at::Tensor& dx) const;
  /// Waits for the gradient that the next stage sends with send_gradient(), and writes it to `dy`,
  /// which must have the sizes and the dtype of that gradient.
  void receive_gradient(at::Tensor& dy);

 private:
  int before() const { return (place_.rank + place_.size - 1) % place_.size; }
  int after() const { return (place_.rank + 1) % place_.size; }
  void receive(at::Tensor& t, int from);

  const StageParameters& stage_;
  RankAxis place_;
  double waited_ = 0;
};

}  // namespace lathe
