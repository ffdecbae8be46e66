// Reads comma-separated values (RFC 4180), or values with another separator, row by row. Includes
// no LibTorch header.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

/// Reads a text row by row. Lines end in LF or CRLF. A quoted field may contain separators, line
/// ends and doubled quotes. Blanks around a field without quotes are not part of it. Blank lines
/// and a UTF-8 byte order mark at the beginning are skipped. Throws Exit::data for text that can't
/// be read. The message names the file and, if it concerns a row or a field, the line and column.
class CsvReader {
 public:
  /// Creates a reader of `text`, which must outlive the reader; `file` is the text's name in
  /// messages. Throws Exit::data if the text is UTF-16 or if its lines end in carriage returns
  /// without line feeds.
  CsvReader(std::string_view text, std::string file, char separator = ',');
  /// Reads the next row; returns false at the end. The fields are valid until the next call.
  bool next(std::vector<std::string_view>& fields);
  /// Returns the line, from 1, in which the row that next() read begins.
  int64_t line() const { return row_line_; }
  /// Returns the number of bytes read so far.
  size_t at() const { return at_; }
  /// Returns "FILE:LINE: column N" for the row that next() read; N counts from 1.
  std::string where(size_t column) const;

 private:
  std::string_view field(size_t column);

  std::string_view text_;
  std::string file_;
  char separator_;
  const char ends_[2];       // characters that end a field without quotes
  std::string_view blanks_;  // characters that are removed around a field
  size_t at_ = 0;
  int64_t line_ = 1, row_line_ = 0;
  std::deque<std::string> unquoted_;  // copies of fields that contain doubled quotes
};

/// Returns the separator of a table. If the file's extension is .tsv or .tab, it is a tab, unless
/// the first line that is not empty contains `usual` and no tab. For other extensions, the first
/// line decides. If it contains `usual`, or if it contains several or none of comma, semicolon and
/// tab, the separator is `usual`. If it contains exactly one of these characters, the separator is
/// that character.
char find_separator(const std::string& file, std::string_view text, char usual);

/// Returns `text` as a field of a comma-separated file. Adds quotes if the field needs them.
std::string csv_field(std::string_view text);

/// Parses a decimal number, which may begin with a plus sign; nullopt if the text is not a number.
/// Texts such as "nan" and "inf" are also numbers. A number whose magnitude is too large or too
/// small for a double is returned as positive infinity.
std::optional<double> csv_number(std::string_view text);
/// Returns whether the text contains commas and would be a number if they were removed, such as
/// 3,14 or 1,000.
bool is_comma_number(std::string_view text);

}  // namespace lathe
