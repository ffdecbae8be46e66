// Describes which positions of each row of tokens a process computes if several processes share the
// rows (context parallelism and sequence parallelism).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace lathe {

/// A part of the positions of each row. Each row is cut into 2 * `parts` chunks of equal length. A
/// part has one chunk of the first half of the row and the mirrored chunk of the second half, so
/// that causal attention takes the same time for each part (Dubey et al. 2024, "The Llama 3 herd of
/// models", section 3.3.2).
struct PositionPart {
  int64_t part = 0, parts = 1;

  /// Returns the indices of this part's chunks, in the order in which the process stores them.
  std::array<int64_t, 2> chunks() const { return {part, 2 * parts - 1 - part}; }
};

/// One of `parts` equal ranges into which sequence-parallel processes divide the positions that
/// they have of each row (dist/sequence_ranks.h).
struct SequencePart {
  int64_t part = 0, parts = 1;
};

/// A range of consecutive positions of a row.
struct PositionRange {
  int64_t begin = 0, length = 0;
};

/// Returns the `count` positions that a process computes, in the order in which it stores them.
/// `of_row` is the part of each row that the process's group of sequence-parallel processes has.
/// `of_part` is the part of `of_row` that the process has.
inline std::vector<PositionRange> position_ranges(const PositionPart& of_row,
                                                  const SequencePart& of_part, int64_t count) {
  const int64_t first = of_part.part * count;
  if (of_row.parts == 1) return {{first, count}};

  const int64_t chunk = of_part.parts * count / 2;  // the length of a chunk
  std::vector<PositionRange> ranges;
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t begin = std::max(first, half * chunk);
    const int64_t end = std::min(first + count, (half + 1) * chunk);
    // Positions [half * chunk, (half + 1) * chunk) of `of_row` are chunk `number` of the row.
    const int64_t number = of_row.chunks()[static_cast<size_t>(half)];
    if (begin < end) ranges.push_back({(number - half) * chunk + begin, end - begin});
  }
  return ranges;
}

}  // namespace lathe
