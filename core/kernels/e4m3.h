// Rounds rows to the 8-bit floating-point format e4m3 (Micikevicius et al. 2022, "FP8 formats for
// deep learning"), with a factor for each row. Numbers are rounded to nearest, ties to even.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// Writes rows of n elements as e4m3 codes of one byte each: y = round(x / factor). The factor of a
/// row maps its largest absolute value to 448, the largest number of the format. If an element of
/// the row is not finite, the factor is NaN and all codes are 0. The factor of a row whose largest
/// absolute value is at most 1e-30 is 1. `type` is float32, bfloat16 or float16.
void pack_e4m3(const void* x, Element type, uint8_t* y, float* factors, int64_t rows, int64_t n);
/// Writes y = x * factor for rows of n codes x. The result is rounded to `type`.
void unpack_e4m3(const uint8_t* x, const float* factors, void* y, Element type, int64_t rows,
                 int64_t n);

}  // namespace lathe
