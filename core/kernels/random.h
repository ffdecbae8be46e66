// Declares functions that fill arrays with random values. Element i depends only on the key and i;
// see core/rng.h.
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace lathe {

/// Sets out[i], for i < n, to stddev times a normally distributed number. This number is sqrt(-2 ln
/// u) cos(2 pi v) (Box and Muller 1958), computed in float64, where u and v are the first two
/// numbers of Philox block i, mapped to (0, 1).
void fill_normal(float* out, int64_t n, double stddev, RngKey key);
/// Sets out[i] = bound * (2 u - 1) for i < n, where u is the first number of Philox block i, mapped
/// to (0, 1).
void fill_uniform(float* out, int64_t n, double bound, RngKey key);

}  // namespace lathe
