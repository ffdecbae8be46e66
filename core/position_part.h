// Which positions of each row of tokens one of several processes computes (context parallelism).
#pragma once

#include <array>
#include <cstdint>

namespace lathe {

/// A part of the positions of each row. Rows are cut into 2 `parts` chunks of equal length. A part
/// has one chunk of the first half and the mirrored one of the second half, so that causal
/// attention costs each part the same (Dubey et al. 2024, "The Llama 3 herd of models",
/// section 3.3.2).
struct PositionPart {
  int64_t part = 0, parts = 1;

  /// Returns the numbers of this part's chunks, in the order in which the process has them.
  std::array<int64_t, 2> chunks() const { return {part, 2 * parts - 1 - part}; }
};

}  // namespace lathe
