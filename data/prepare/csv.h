// Comma-separated values (RFC 4180), a row at a time. No LibTorch header.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

/// Goes through a text's rows. Lines end in \n or \r\n; a field in quotes may hold commas, line
/// ends and, doubled, quotes; blanks around a field that is not in quotes are no part of it; blank
/// lines and a UTF-8 mark at the beginning are skipped. Errors are Exit::data and name file, line
/// and column.
class CsvReader {
 public:
  /// The text must outlive the reader; `file` stands in messages.
  CsvReader(std::string_view text, std::string file);
  /// The next row; false at the end. The fields are good until the next call.
  bool next(std::vector<std::string_view>& fields);
  /// The line that the row began in, from 1.
  int64_t line() const { return row_line_; }
  /// Bytes that have been gone through.
  size_t at() const { return at_; }
  /// "FILE:LINE: column N" of the row that next() gave, N from 1.
  std::string where(size_t column) const;

 private:
  std::string_view field(size_t column);

  std::string_view text_;
  std::string file_;
  size_t at_ = 0;
  int64_t line_ = 1, row_line_ = 0;
  std::deque<std::string> unquoted_;  // fields with doubled quotes
};

/// A decimal number, which may begin with a plus sign; nullopt where the text is none. What a
/// double can't hold is infinite.
std::optional<double> csv_number(std::string_view text);

}  // namespace lathe
