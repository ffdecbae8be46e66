// Defines ElementRange, a range of a tensor's elements.
#pragma once

#include <cstdint>

namespace lathe {

/// Elements [begin, end) of a tensor, counted in row-major order.
struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

}  // namespace lathe
