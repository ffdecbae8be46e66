// The recurrence of an LSTM layer over all steps of a batch of sequences. In a small layer, each
// task computes some rows of the batch for all steps, so threads wait for each other only once. In
// a large one, whose weight exceeds a core's cache, threads divide the units of each step, so that
// each reads a part of the weight. Results are the same bits on any number of threads.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// The shape of a layer's pass. h is even, and all sizes are above 0.
///
/// States [steps + 1, batch, h] have one position more than there are steps: the state before the
/// first step is at position 0 or, with `reverse`, which takes the steps from the last to the
/// first, at position `steps`.
struct LstmShape {
  int64_t steps = 0, batch = 0, h = 0;
  bool reverse = false;

  /// Returns the step that is the i-th in the order of the recurrence.
  int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
  /// Return the positions of the states before and after step t.
  int64_t before(int64_t t) const { return reverse ? t + 1 : t; }
  int64_t after(int64_t t) const { return reverse ? t : t + 1; }
  /// Return the positions of the states before the first step and after the last one.
  int64_t first() const { return reverse ? steps : 0; }
  int64_t last() const { return reverse ? 0 : steps; }
};

/// Adds each hidden state times the transpose of `weight` [4 h, h] to the gates [steps, batch, 4 h]
/// of the next step, which already hold the contribution of the inputs, and writes the states after
/// each step. The caller has set the states before the first step. Gates and hidden states have the
/// weight's type.
void lstm_forward(const LstmShape& shape, Matrix weight, void* gates, void* hidden, float* cells);

/// Computes the gradients of the gates, before their activations, and of the states before
/// the first step: dh0 [batch, h], of the weight's type, and dc0 [batch, h]. `dy` [steps, batch, h]
/// is the gradient of the hidden states after each step, and `dc` [batch, h] that of the last cell
/// state; either may be null: zero. dgates may be the gates' own memory.
void lstm_backward(const LstmShape& shape, Matrix weight, const void* gates, const float* cells,
                   const void* dy, const float* dc, void* dgates, void* dh0, float* dc0);

}  // namespace lathe
