// Comma-separated values (RFC 4180), a row at a time. No LibTorch header.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

/// Reads a text row by row. Lines end in LF or CRLF. A field in quotes may contain commas, line
/// ends and, doubled, quotes. Blanks around a field without quotes do not belong to it. Blank lines
/// and a UTF-8 byte order mark at the beginning are skipped. Errors are Exit::data and name file,
/// line and column.
class CsvReader {
 public:
  /// The text must outlive the reader; `file` is its name in messages.
  CsvReader(std::string_view text, std::string file);
  /// Reads the next row; returns false at the end. The fields are valid until the next call.
  bool next(std::vector<std::string_view>& fields);
  /// Returns the line that the row began in, from 1.
  int64_t line() const { return row_line_; }
  /// Returns the number of bytes read so far.
  size_t at() const { return at_; }
  /// Returns "FILE:LINE: column N" for the row that next() read; N counts from 1.
  std::string where(size_t column) const;

 private:
  std::string_view field(size_t column);

  std::string_view text_;
  std::string file_;
  size_t at_ = 0;
  int64_t line_ = 1, row_line_ = 0;
  std::deque<std::string> unquoted_;  // fields with doubled quotes
};

/// Returns a decimal number, which may begin with a plus sign; nullopt where the text is not a
/// number. A number too large for a double is infinite.
std::optional<double> csv_number(std::string_view text);

}  // namespace lathe
