// Computes Philox blocks in groups of philox_group, with plain loops that the compiler vectorizes.
// This file is included in the same way as simd-inl.h.
#if defined(LATHE_CORE_KERNELS_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_CORE_KERNELS_PHILOX_INL_H
#undef LATHE_CORE_KERNELS_PHILOX_INL_H
#else
#define LATHE_CORE_KERNELS_PHILOX_INL_H
#endif

#include "core/rng.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

inline constexpr int64_t philox_group = 64;

/// Sets words[w][i] to word w of philox(counter(first + i, step), key).
inline void philox_blocks(uint64_t first, uint64_t step, RngKey key,
                          uint32_t (&words)[4][philox_group]) {
  auto& [c0, c1, c2, c3] = words;
  for (int64_t i = 0; i < philox_group; ++i) {
    const Philox4 c = counter(first + static_cast<uint64_t>(i), step);
    c0[i] = c[0];
    c1[i] = c[1];
    c2[i] = c[2];
    c3[i] = c[3];
  }
  for (int round = 0; round < 10; ++round) {
    for (int64_t i = 0; i < philox_group; ++i) {
      const uint64_t a = uint64_t{0xD2511F53u} * c0[i], b = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ key.k0;
      c1[i] = static_cast<uint32_t>(b);
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ key.k1;
      c3[i] = static_cast<uint32_t>(a);
    }
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
