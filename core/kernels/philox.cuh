// Implements philox() of core/rng.h for GPUs.
#pragma once

#include "core/rng.h"

namespace lathe {

/// A Philox4x32 block of four random 32-bit numbers.
struct DevicePhilox {
  uint32_t words[4];

  /// Computes block `index` at `step`, as philox(counter(index, step), key) does.
  __device__ DevicePhilox(uint64_t index, uint64_t step, RngKey key)
      : words{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
              static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)} {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const uint32_t a_high = __umulhi(0xD2511F53u, words[0]), a_low = 0xD2511F53u * words[0];
      const uint32_t b_high = __umulhi(0xCD9E8D57u, words[2]), b_low = 0xCD9E8D57u * words[2];
      words[0] = b_high ^ words[1] ^ key.k0;
      words[1] = b_low;
      words[2] = a_high ^ words[3] ^ key.k1;
      words[3] = a_low;
      key.k0 += 0x9E3779B9u;
      key.k1 += 0xBB67AE85u;
    }
  }
  __device__ uint32_t operator[](int64_t i) const { return words[i]; }
};

}  // namespace lathe
