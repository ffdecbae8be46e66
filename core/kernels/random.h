// Random values of whole tensors. Element i depends on the key and i alone: see core/rng.h.
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace lathe {

/// out[i] = stddev times a normal number made of Philox block i, for i < n: sqrt(-2 ln u) cos(2 pi
/// v) with the block's first two numbers, in float64 (Box and Muller 1958).
void fill_normal(float* out, int64_t n, double stddev, RngKey key);
/// out[i] = bound (2 u - 1).
void fill_uniform(float* out, int64_t n, double bound, RngKey key);

}  // namespace lathe
