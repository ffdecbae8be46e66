// Finds a learning rate and a batch size before a run.
#pragma once

#include <cstdint>
#include <vector>

#include "train/session/session.h"

namespace lathe {

/// The result of training steps whose learning rate grows from step to step (Smith 2015, "Cyclical
/// learning rates for training neural networks", section 3.3).
struct RangeTest {
  std::vector<double> lr, loss;  ///< of each step; the losses are smoothed
  double steepest =
      0;  ///< a rate to train with: the loss fell fastest over log(rate) there; 0: never
  double diverged =
      0;  ///< the rate where the loss rose 10% above its first value or was not finite; 0: nowhere
  double lowest = 0;  ///< the rate of the lowest loss, if it rises from there; 0: it never does
};
/// Runs up to `steps` training steps, from rate `from` to rate `to`; ends early where the loss
/// diverges. Trains the session, and sets its schedule to a constant rate.
RangeTest lr_range_test(Session& session, const Data& data, double from, double to, int64_t steps);
/// Sets `steepest` and `lowest` from the smoothed losses, and also `diverged` unless it is already
/// set.
void read_range(RangeTest& test);

/// Gradient noise: the batch size beyond which a larger batch improves the gradient little
/// (McCandlish et al. 2018, "An empirical model of large-batch training", appendix A.1).
struct NoiseScale {
  double gradient = 0;  ///< estimate of the squared norm of the true gradient
  double noise = 0;     ///< estimate of the trace of the covariance of one sample's gradient
  /// Returns the batch size, in samples (sequences, examples), at which noise and gradient are
  /// equal; NaN where the estimate of the gradient is not above zero.
  double batch() const;
};
/// Returns the estimates from the squared gradient norms of batches of `small` samples (the mean of
/// several) and of `large` samples.
NoiseScale noise_scale(double small_norm, double large_norm, double small, double large);
/// Measures the noise over `rounds` times `parts` micro-batches. Changes no parameter; running
/// statistics of batch norm are updated as in training.
NoiseScale measure_noise(Session& session, const Data& data, int64_t parts, int64_t rounds);

}  // namespace lathe
