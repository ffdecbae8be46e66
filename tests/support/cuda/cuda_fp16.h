// A stand-in for CUDA's header of this name, with which tests run CUDA kernels on the CPU. It has
// only the parts that Lathe's kernels use. See tests/support/cuda/cuda_runtime.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;

  __half() = default;
  __half(float x) {  // rounds to nearest, ties to even; any NaN becomes 0x7fff, as in CUDA
    const float size = std::fabs(x);
    const int sign = std::signbit(x) ? 0x8000 : 0;
    if (x != x) {
      bits = 0x7fff;
    } else if (size >= 65520) {  // halfway between the largest number, 65504, and 65536
      bits = static_cast<uint16_t>(sign | 0x7c00);
    } else {
      const int exponent =
          std::max(size > 0 ? std::ilogb(size) : -14, -14);  // -14: the exponent of the smallest
                                                             // normal number
      // `digits` is in [1024, 2048] for normal numbers, whose leading bit adds 1 to the exponent
      // field, and in [0, 1024] for subnormal numbers.
      const auto digits = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
      bits = static_cast<uint16_t>(sign | (((exponent + 14) << 10) + digits));
    }
  }
  operator float() const {
    const int exponent = (bits >> 10) & 31, digits = bits & 1023;
    float size = std::ldexp(static_cast<float>(exponent > 0 ? 1024 + digits : digits),
                            std::max(exponent, 1) - 25);
    if (exponent == 31) size = digits != 0 ? NAN : INFINITY;
    return (bits & 0x8000) != 0 ? -size : size;
  }
};

inline float __half2float(__half x) { return x; }
inline __half __float2half_rn(float x) { return x; }
