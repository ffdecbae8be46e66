#include "core/rng.h"

#include <bit>

namespace lathe {

Permutation::Permutation(uint64_t n, RngKey key)
    : n_(n), half_bits_((std::bit_width(n > 1 ? n - 1 : uint64_t{1}) + 1) / 2), key_(key) {}

uint64_t Permutation::operator()(uint64_t i) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = i >> half_bits_, right = i & mask;
    for (uint32_t round = 0; round < 4; ++round) {
      const auto f = philox(
          {static_cast<uint32_t>(right), static_cast<uint32_t>(right >> 32), round, 0}, key_);
      const uint64_t next = left ^ ((f[0] | uint64_t{f[1]} << 32) & mask);
      left = right;
      right = next;
    }
    i = left << half_bits_ | right;
  } while (i >= n_);
  return i;
}

}  // namespace lathe
