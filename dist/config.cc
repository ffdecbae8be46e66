#include "dist/config.h"

#include <charconv>

namespace lathe {

std::optional<std::vector<int64_t>> parse_stage_blocks(std::string_view text) {
  std::vector<int64_t> counts;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int64_t count = 0;
    const auto [rest, error] = std::from_chars(at, end, count);
    if (error != std::errc() || count < 1 || count > 1'000'000) return std::nullopt;
    counts.push_back(count);
    if (rest == end) return counts;
    if (*rest != ',') return std::nullopt;
    at = rest + 1;
  }
}

}  // namespace lathe
