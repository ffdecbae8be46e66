// Detects steps whose loss is far above the recent losses, so that their updates are skipped
// (train.spike_sigma).
//
// The running mean and variance are part of the run's state. On a GPU the decision waits for the
// loss of each step.
#pragma once

#include <cstdint>

namespace lathe {

/// The part of a run's state with which a resumed run makes the same decisions as an uninterrupted
/// run.
struct SpikeState {
  int64_t seen = 0;               ///< number of losses in mean and variance since the last reset
  double mean = 0, variance = 0;  ///< exponentially weighted mean and variance of recent losses
  int64_t skipped = 0;            ///< steps of the run whose update was skipped
  int64_t skipped_in_row = 0;
};

/// Compares each step's loss with an exponentially weighted mean and variance (decay 0.98; Finch
/// 2009, "Incremental calculation of weighted mean and variance"). None of the first 50 losses, or
/// of the first 50 after a reset, is a spike. After 10 spikes in a row, another spike is accepted
/// as the new level of the loss: mean and variance are reset.
class SpikeGuard {
 public:
  explicit SpikeGuard(double sigma) : sigma_(sigma) {}
  /// Returns whether a finite `loss` is a spike, that is, more than sigma standard deviations above
  /// the mean, and updates the state. A spike is counted, but does not enter mean and variance.
  bool is_spike(double loss);
  /// Returns the state for a checkpoint.
  const SpikeState& state() const { return state_; }
  /// Resumes from a saved state.
  void load(const SpikeState& state) { state_ = state; }

 private:
  double sigma_;
  SpikeState state_;
};

}  // namespace lathe
