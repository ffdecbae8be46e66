// A stand-in for CUDA's header of this name, with which tests run CUDA kernels on the CPU. It has
// only the parts that Lathe's kernels use. See tests/support/cuda/cuda_runtime.h.
#pragma once

#include <bit>
#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;

  __nv_bfloat16() = default;
  __nv_bfloat16(float x) {  // rounds to nearest, ties to even; any NaN becomes 0x7fff, as in CUDA
    const auto wide = std::bit_cast<uint32_t>(x);
    bits = static_cast<uint16_t>(x != x ? 0x7fff : (wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
