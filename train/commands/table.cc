#include "train/commands/table.h"

#include <algorithm>

#include "core/io/text.h"

namespace lathe {
namespace {

/// Counts code points. Assumes that each character of names and numbers takes one column.
size_t columns(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string TextTable::text() const {
  auto rows = rows_;
  for (auto& row : rows) std::transform(row.begin(), row.end(), row.begin(), printable_line);
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text += std::string(widths[i] - columns(row[i]) + 2, ' ');
    }
    text += "\n";
  }
  return text;
}

}  // namespace lathe
