// Defines, for CPUs and GPUs, how a number is rounded to e4m3, and how a row of numbers is
// converted to e4m3 codes and a factor.
#pragma once

#include <cstdint>

#include "core/kernels/rules/rule.h"

namespace lathe {

/// Returns the e4m3 code of a number whose absolute value is at most 448. In float32, the exponent
/// has a bias of 127 and the fraction has 23 bits; in e4m3, the bias is 7 and the fraction has 3
/// bits.
LATHE_BOTH inline uint8_t e4m3_code(float v) {
  const auto bits = __builtin_bit_cast(uint32_t, v), size = bits & 0x7fffffffu;
  const uint32_t normal = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
  // Below 2^-6, the numbers of e4m3 are multiples of 2^-9. This is also the spacing of the float32
  // numbers from 2^14 to 2^15.
  const float shifted = __builtin_bit_cast(float, size) + 0x1p14f;
  // 0x46800000 holds the bits of 2^14 in float32.
  const uint32_t below = __builtin_bit_cast(uint32_t, shifted) - 0x46800000u;
  // 0x3c800000 holds the bits of 2^-6 in float32.
  const uint32_t code = size >= 0x3c800000u ? normal : below;
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80u));
}

/// Returns the number that a code stands for.
LATHE_BOTH inline float e4m3_value(uint8_t code) {
  const uint32_t size = code & 0x7fu;
  const float normal = __builtin_bit_cast(float, (size << 20) + (120u << 23)),
              below = static_cast<float>(size) * 0x1p-9f;
  const float v = size < 8 ? below : normal;
  return __builtin_bit_cast(
      float, __builtin_bit_cast(uint32_t, v) | static_cast<uint32_t>(code & 0x80u) << 24);
}

/// Defines how the numbers of a row are rounded; see pack_e4m3(). `largest` is the largest absolute
/// value of the row, or infinity or NaN if the row contains an infinite number or NaN.
struct E4m3Row {
  static constexpr float limit = 448;  // the largest number of the format
  bool is_finite;
  float scale, factor;

  LATHE_BOTH explicit E4m3Row(float largest) : is_finite(largest <= 3.402823466e38f) {
    const bool is_usable = is_finite && largest > 1e-30f;
    scale = is_usable ? limit / largest : 1;
    factor = is_usable ? largest / limit : is_finite ? 1 : __builtin_nanf("");
  }
  LATHE_BOTH uint8_t code(float x) const {
    const float v = x * scale, above = v < -limit ? -limit : v;
    return e4m3_code(above > limit ? limit : above);
  }
};

}  // namespace lathe
