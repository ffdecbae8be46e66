// Defines sizes of images.
#pragma once

#include <cstdint>

namespace lathe {

/// A height and a width. A single number converts to a Pair of two equal values.
struct Pair {
  int64_t h, w;
  constexpr Pair(int64_t both) : h(both), w(both) {}
  constexpr Pair(int64_t h_, int64_t w_) : h(h_), w(w_) {}
};

}  // namespace lathe
