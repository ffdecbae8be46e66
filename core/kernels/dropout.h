// Declares dropout. Element i of the global batch is dropped if word i % 4 of Philox block i / 4 is
// below the threshold. The mask is therefore the same on every device and for every split of the
// batch among processes. See core/rng.h.
#pragma once

#include <cstdint>

#include "core/kernels/element.h"
#include "core/rng.h"

namespace lathe {

/// Defines which elements are dropped, and by which factor the other elements are multiplied.
struct DropoutMask {
  RngKey key;
  uint64_t step = 0;
  uint64_t first = 0;      ///< the index of element 0 within the global batch
  uint32_t threshold = 0;  ///< p * 2^32
  double scale = 1;        ///< 1 / (1 - p)
};

/// Sets y[i] = dropped(i) ? 0 : x[i] * scale for begin <= i < end. x and y are contiguous.
void dropout_cpu(const void* x, void* y, int64_t begin, int64_t end, Element type,
                 const DropoutMask& mask);

}  // namespace lathe
