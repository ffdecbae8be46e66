// Declares rotary position embeddings (Su et al. 2021) in the form of GPT-NeoX and Llama. Channels
// i and i + width / 2 of a head are a pair, which is rotated by an angle that depends on the
// position.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"

namespace lathe {

/// Rotates x and writes the result to y. If `back` is true, rotates by the opposite angles. x and y
/// [rows, heads * width] are contiguous, in float32, bfloat16 or float16. y may be x. A row of
/// rope_table [rope_rows, width] holds the cosines of the width / 2 angles of a head, then the
/// sines. Row r of x uses row r % rope_rows of the table. `width` is even.
void rotate_heads(const void* x, void* y, Element type, int64_t rows, int64_t heads, int64_t width,
                  const float* rope_table, int64_t rope_rows, bool back);

/// Returns whether rotate_heads_cuda() supports heads of these sizes. Each half of a head must
/// consist of complete packs of 16 bytes, and the first halves of all heads together must have
/// fewer than 2^31 packs.
inline bool rotation_on_gpu(Element type, int64_t rows, int64_t heads, int64_t width) {
  const int64_t pack = 16 / bytes_of(type);
  return type != Element::f64 && width % (2 * pack) == 0 &&
         rows * heads * width / (2 * pack) <= INT32_MAX;
}

}  // namespace lathe
