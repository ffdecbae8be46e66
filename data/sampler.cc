#include "data/sampler.h"

#include <algorithm>

#include "core/rng.h"

namespace lathe {

// The number of windows is the same in every epoch: as many as fit behind the largest offset (at least one, for data
// barely longer than a window, whose offsets are then fewer).
WindowSampler::WindowSampler(int64_t tokens, int64_t block_size, uint64_t seed)
    : block_size_(block_size), windows_(std::max<int64_t>(1, (tokens - block_size) / block_size)), seed_(seed) {
  offset_range_ = static_cast<uint64_t>(std::min(block_size, tokens - windows_ * block_size));
}

int64_t WindowSampler::start_of(int64_t n) const {
  const auto epoch = static_cast<uint64_t>(n / windows_), index = static_cast<uint64_t>(n % windows_);
  const auto offset = philox(counter(epoch, 0), make_key(seed_, hash_name("data/offset")))[0] % offset_range_;
  const Permutation order(static_cast<uint64_t>(windows_), make_key(seed_, hash_name("data/order") + epoch));
  return static_cast<int64_t>(offset) + static_cast<int64_t>(order(index)) * block_size_;
}

}  // namespace lathe
