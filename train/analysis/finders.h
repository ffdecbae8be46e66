// Finds a learning rate and a batch size before a run starts.
#pragma once

#include <cstdint>
#include <vector>

#include "train/session/session.h"

namespace lathe {

/// The result of training steps whose learning rate grows from step to step (Smith 2015, "Cyclical
/// learning rates for training neural networks", section 3.3).
struct RangeTest {
  std::vector<double> lr, loss;  ///< learning rate and smoothed loss of each step
  /// The learning rate at which the loss fell fastest over log(rate), which is a good rate for
  /// training; 0 if the loss never fell.
  double steepest = 0;
  /// The learning rate at which the loss was not finite, or at which the loss, after its lowest
  /// value, rose 10% above its first value; 0 if neither happened.
  double diverged = 0;
  double lowest = 0;  ///< learning rate at the lowest loss if the loss rose later; otherwise 0
};
/// Runs up to `steps` training steps, whose learning rate grows from `from` to `to`. Ends early if
/// the loss diverges. Trains the session's model, and sets its schedule to a constant rate.
RangeTest lr_range_test(Session& session, const Data& data, double from, double to, int64_t steps);
/// Sets `steepest` and `lowest` from the smoothed losses. Also sets `diverged`, unless it is
/// already set.
void read_range(RangeTest& test);

/// The gradient noise scale: the batch size beyond which a larger batch improves the gradient
/// little (McCandlish et al. 2018, "An empirical model of large-batch training", appendix A.1).
struct NoiseScale {
  double gradient = 0;  ///< estimate of the squared norm of the true gradient
  double noise = 0;     ///< estimate of the trace of the covariance of one sample's gradient
  /// Returns the noise scale: the batch size, in samples (sequences or examples), at which the
  /// noise and the gradient have equal magnitude. Returns NaN if the estimate of the gradient is
  /// not above zero.
  double batch() const;
};
/// Estimates the noise scale from squared norms of gradients. `small_norm` is the mean over batches
/// of `small` samples, and `large_norm` is the mean over batches of `large` samples.
NoiseScale noise_scale(double small_norm, double large_norm, double small, double large);
/// Measures the noise scale with `rounds` large batches, each of which consists of `parts`
/// micro-batches. Changes no parameter, but updates the running statistics of batch norm as
/// training does.
NoiseScale measure_noise(Session& session, const Data& data, int64_t parts, int64_t rounds);

}  // namespace lathe
