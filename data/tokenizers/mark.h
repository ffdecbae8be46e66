// Bits that mark ids of instruction and preference data: the ids of prompts, which are read but not
// learned, and the first id of each row of preference data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lathe {

/// The bit that is set in a uint32 id that is not learned.
inline constexpr uint32_t token_mark = uint32_t{1} << 31;
/// The bit that is set in the first id of each answer of a pair, its prompt included.
inline constexpr uint32_t token_begin = uint32_t{1} << 30;
/// The bits of an id that are not part of its number.
inline constexpr uint32_t token_bits = token_mark | token_begin;
/// Returns the id with the mark.
inline int32_t mark_token(int32_t id) {
  return static_cast<int32_t>(static_cast<uint32_t>(id) | token_mark);
}
/// Marks the ids from index `from` on.
inline void mark_tokens(std::vector<int32_t>& ids, size_t from) {
  for (size_t i = from; i < ids.size(); ++i) ids[i] = mark_token(ids[i]);
}

}  // namespace lathe
