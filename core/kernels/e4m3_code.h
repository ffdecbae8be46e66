// How a number is rounded to e4m3, and a row of numbers to codes with a factor, for CPUs and GPUs.
#pragma once

#include <cstdint>

#include "core/kernels/rules/rule.h"

namespace lathe {

/// Returns the code of a number of at most 448. float32 has a bias of 127 and 23 bits of fraction,
/// e4m3 of 7 and 3.
LATHE_BOTH inline uint8_t e4m3_code(float v) {
  const auto bits = __builtin_bit_cast(uint32_t, v), size = bits & 0x7fffffffu;
  const uint32_t normal = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
  // Below 2^-6 numbers are multiples of 2^-9, which is the spacing of float32 from 2^14 on.
  const float shifted = __builtin_bit_cast(float, size) + 0x1p14f;
  const uint32_t below = __builtin_bit_cast(uint32_t, shifted) - 0x46800000u;  // the bits of 2^14
  const uint32_t code = size >= 0x3c800000u ? normal : below;                  // those of 2^-6
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80u));
}

/// Returns the number of a code.
LATHE_BOTH inline float e4m3_value(uint8_t code) {
  const uint32_t size = code & 0x7fu;
  const float normal = __builtin_bit_cast(float, (size << 20) + (120u << 23)),
              below = static_cast<float>(size) * 0x1p-9f;
  const float v = size < 8 ? below : normal;
  return __builtin_bit_cast(
      float, __builtin_bit_cast(uint32_t, v) | static_cast<uint32_t>(code & 0x80u) << 24);
}

/// How the numbers of a row are rounded; see pack_e4m3(). `largest`: their largest absolute value,
/// infinity or NaN if one of them is.
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
