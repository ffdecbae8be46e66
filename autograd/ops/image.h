// What ops on images [B, C, H, W] share.
#pragma once

#include <array>

#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/error.h"

namespace lathe {

using ImageSizes = std::array<int64_t, 4>;

inline std::array<int64_t, 2> both(Pair p) { return {p.h, p.w}; }
inline ImageSizes image_sizes(at::IntArrayRef sizes) {
  LATHE_CHECK(sizes.size() == 4, "needs 4 dims, not ", describe(sizes));
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

}  // namespace lathe
