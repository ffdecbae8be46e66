// Steps whose loss stands out from those before it: their update is left out (train.spike_sigma).
//
// The running mean and variance are part of the run's state. On a GPU the decision waits for the
// loss of each step.
#pragma once

#include <cstdint>

namespace lathe {

/// Part of a run's state, so that a resumed run judges as one that never stopped.
struct SpikeState {
  int64_t seen = 0;               ///< losses in mean and variance, since they were begun
  double mean = 0, variance = 0;  ///< of the losses of late, exponentially weighted
  int64_t skipped = 0;            ///< steps of the run whose update was left out
  int64_t skipped_in_row = 0;
};

/// Judges each step's loss in turn by an exponentially weighted mean and variance (decay 0.98;
/// Finch 2009, "Incremental calculation of weighted mean and variance"). Nothing is a spike before
/// 50 losses; after 10 in a row the level is taken to be a new one, and mean and variance begin
/// again.
class SpikeGuard {
 public:
  explicit SpikeGuard(double sigma) : sigma_(sigma) {}
  /// Whether a finite `loss` is more than sigma standard deviations above the mean; counts it one
  /// way or the other.
  bool is_spike(double loss);
  /// What a checkpoint keeps.
  const SpikeState& state() const { return state_; }
  /// Resumes from it.
  void load(const SpikeState& state) { state_ = state; }

 private:
  double sigma_;
  SpikeState state_;
};

}  // namespace lathe
