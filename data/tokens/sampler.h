// Chooses the windows of tokens for training. The n-th window is a pure function of (seed, n).
//
// Window i of epoch e is the T + 1 tokens at positions o_e + iT to o_e + iT + T: T inputs and,
// shifted by one, T targets. o_e is a pseudorandom offset in [0, T). A pseudorandom permutation
// orders the windows of an epoch. Both depend only on the seed and the epoch. Epochs are
// concatenated, so a batch may contain windows of two epochs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lathe {

/// Chooses the windows of one split of a folder of token data.
class WindowSampler {
 public:
  /// Creates a sampler for a split of `tokens` tokens. Requires tokens > block_size >= 1.
  WindowSampler(int64_t tokens, int64_t block_size, uint64_t seed);
  /// Returns the position of the first token of the n-th window since the start of training.
  int64_t start_of(int64_t n) const;
  /// Returns the number of windows, which is the same in every epoch.
  int64_t windows_per_epoch() const { return windows_; }

 private:
  int64_t block_size_, windows_;
  uint64_t offset_range_, seed_;
};

/// Chooses the source of each window of a mixture. The source of the n-th window is a pure function
/// of (seed, n). In every round of 65536 windows, each source has the same number of windows, which
/// is its share of the round, rounded to an integer. A pseudorandom permutation, which depends on
/// the seed and the round, orders these windows.
class MixtureSampler {
 public:
  /// Requires weights that are not negative, and at least one that is positive. A source with a
  /// positive weight occurs at least once in every round.
  MixtureSampler(const std::vector<double>& weights, uint64_t seed);
  /// A window of the mixture.
  struct Place {
    size_t source;
    int64_t index;  ///< index of the window among the windows of its source, from 0
  };
  /// Returns the n-th window since the start of training.
  Place operator()(int64_t n) const;

 private:
  std::vector<int64_t> ends_;  // the end of each source's range of positions in a round
  uint64_t seed_;
};

/// Returns the i-th of `count` indices below `size`, ascending and spread evenly. Each of `count`
/// equal parts of the range has one index, at a pseudorandom position in the part, so that the
/// indices do not follow a period of the data. The same arguments always give the same index.
/// Requires i < count <= size.
int64_t spread_index(int64_t i, int64_t count, int64_t size);

}  // namespace lathe
