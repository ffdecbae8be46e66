// Rotary positions (Su et al. 2021), in the form of halves that GPT-NeoX and LLaMA have: channel i
// of a head and channel i + width / 2 are a pair that its place turns.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// y = x turned, by the opposite angles where `back`. x and y [rows, heads width], contiguous,
/// float32, bfloat16 or float16; may be one. turns [turn_rows, width]: cosines, then sines, of half
/// a head's pairs; row r of x takes turns' row r % turn_rows. `width` is even.
void rotate_heads(const void* x, void* y, Element type, int64_t rows, int64_t heads, int64_t width,
                  const float* turns, int64_t turn_rows, bool back);

}  // namespace lathe
