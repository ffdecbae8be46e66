// Finding a learning rate and a batch size before a run.
#pragma once

#include <cstdint>
#include <vector>

#include "train/run/session.h"

namespace lathe {

/// Training steps under a learning rate that grows from step to step. Smith 2015, "Cyclical
/// learning rates for training neural networks", section 3.3.
struct RangeTest {
  std::vector<double> lr, loss;  ///< of each step; smoothed losses
  double steepest = 0;  ///< where the loss fell fastest for a factor in the rate: one to train with
  double diverged =
      0;  ///< where it rose beyond its start's or stopped being finite; 0: it never did
};
/// `steps` steps from rate `from` to `to`, fewer where the loss diverges. The session is trained by
/// it.
RangeTest lr_range_test(Session& session, const Data& data, double from, double to, int64_t steps);
/// The two places, of smoothed losses that are given.
void read_range(RangeTest& test);

/// Gradient noise: how large a batch is before a larger one says little more. McCandlish et al.
/// 2018, "An empirical model of large-batch training", appendix A.1.
struct NoiseScale {
  double gradient = 0;  ///< estimate of the true gradient's squared norm
  double noise = 0;     ///< of the trace of one sample's covariance
  /// Samples (sequences, examples) of a batch at which noise and gradient are equal; NaN where the
  /// estimate of the gradient is not above zero.
  double batch() const;
};
/// From the squared norms of gradients of batches of `small` samples (a mean of several) and of
/// `large` ones.
NoiseScale noise_scale(double small_norm, double large_norm, double small, double large);
/// Over `rounds` times `parts` micro-batches of the data, without changing the model.
NoiseScale measure_noise(Session& session, const Data& data, int64_t parts, int64_t rounds);

}  // namespace lathe
