// Defines flag bits in the ids of instruction and preference data. The bits mark ids that do not
// count toward the loss, such as token ids of prompts, and the first id of each row of preference
// data. While `lathe prepare` runs, they also mark the first id of each conversation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lathe {

/// The bit that is set in a uint32 id that does not count toward the loss.
inline constexpr uint32_t token_mark = uint32_t{1} << 31;
/// The bit that is set in the first id of each row of preference data. A row is a prompt and an
/// answer.
inline constexpr uint32_t token_begin = uint32_t{1} << 30;
/// Both bits, which are not part of an id's number.
inline constexpr uint32_t token_bits = token_mark | token_begin;
/// Returns the id with token_mark.
inline int32_t mark_token(int32_t id) {
  return static_cast<int32_t>(static_cast<uint32_t>(id) | token_mark);
}
/// Sets token_mark in the ids at index `from` and later.
inline void mark_tokens(std::vector<int32_t>& ids, size_t from) {
  for (size_t i = from; i < ids.size(); ++i) ids[i] = mark_token(ids[i]);
}

}  // namespace lathe
