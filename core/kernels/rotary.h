// Rotary position embeddings (Su et al. 2021), in the form of GPT-NeoX and Llama: channels i and i
// + width / 2 of a head are a pair, which is rotated by an angle that depends on the position.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// Rotates x and writes the result to y; if `back` is true, rotates by the opposite angles. x and y
/// [rows, heads width] are contiguous, in float32, bfloat16 or float16; y may be x. A row of
/// rope_table [rope_rows, width] has the cosines of the width / 2 angles of a head, then their
/// sines; row r of x uses row r % rope_rows. `width` is even.
void rotate_heads(const void* x, void* y, Element type, int64_t rows, int64_t heads, int64_t width,
                  const float* rope_table, int64_t rope_rows, bool back);

/// Returns whether rotate_heads_cuda() takes heads of these sizes. Each half of a head must consist
/// of complete packs of 16 bytes, and the first halves of all heads together must have at most 2^31
/// - 1 packs.
inline bool rotation_on_gpu(Element type, int64_t rows, int64_t heads, int64_t width) {
  const int64_t pack = 16 / bytes_of(type);
  return type != Element::f64 && width % (2 * pack) == 0 &&
         rows * heads * width / (2 * pack) <= INT32_MAX;
}

}  // namespace lathe
