// Declares the recurrence of an LSTM layer over all steps of a batch of sequences. In a small
// layer, each task computes some rows of the batch for all steps, so threads wait for each other
// only once. In a large layer, whose weight is larger than a core's cache, threads divide the units
// of each step, so that each thread reads only a part of the weight. Results on different numbers
// of threads are bitwise equal.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// The shape of a pass through a layer with h hidden units. h is even, and all sizes are above 0.
///
/// States [steps + 1, batch, h] have one more position than there are steps. If `reverse` is false,
/// the recurrence goes from the first step to the last, and its initial state is at position 0. If
/// `reverse` is true, the recurrence goes from the last step to the first, and its initial state is
/// at position `steps`.
struct LstmShape {
  int64_t steps = 0, batch = 0, h = 0;
  bool reverse = false;

  /// Returns the i-th step in the order of the recurrence.
  int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
  /// Return the positions of the states before and after step t.
  int64_t before(int64_t t) const { return reverse ? t + 1 : t; }
  int64_t after(int64_t t) const { return reverse ? t : t + 1; }
  /// Return the positions of the initial and the final state of the recurrence.
  int64_t first() const { return reverse ? steps : 0; }
  int64_t last() const { return reverse ? 0 : steps; }
};

/// Computes all steps. `gates` [steps, batch, 4 h] must contain the contribution of the inputs; the
/// hidden state before each step times the transpose of `weight` [4 h, h] is added to the gates of
/// that step. Writes the states after each step to `hidden` and `cells` [steps + 1, batch, h]. The
/// caller must set the initial states. Gates and hidden states have the weight's type.
void lstm_forward(const LstmShape& shape, Matrix weight, void* gates, void* hidden, float* cells);

/// Computes `dgates`, the gradients of the gates before their activations, and the gradients of the
/// initial states: dh0 [batch, h], in the weight's type, and dc0 [batch, h]. `dy` [steps, batch, h]
/// is the gradient of the hidden states after each step, and `dc` [batch, h] is the gradient of the
/// final cell state. If `dy` or `dc` is null, that gradient is zero. `dgates` may be the same array
/// as `gates`.
void lstm_backward(const LstmShape& shape, Matrix weight, const void* gates, const float* cells,
                   const void* dy, const float* dc, void* dgates, void* dh0, float* dc0);

}  // namespace lathe
