// Declares functions for text: checks of UTF-8 (RFC 3629), formatting as printf does it, and
// parsing of numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// Returns the number of bytes of the code point that begins at text[at]. Returns 0 if the code
/// point is malformed: cut short, overlong, a surrogate, or beyond U+10FFFF.
size_t code_point_length(std::string_view text, size_t at);
/// Returns the position in `text` at which the well-formed UTF-8 that begins at text[begin] ends.
/// Reads at most `most` bytes, plus the remaining bytes of the last code point.
size_t utf8_end(std::string_view text, size_t begin, size_t most = std::string_view::npos);
/// Returns the number of bytes, from 0 to 3, of an incomplete code point at the end of `text`.
size_t incomplete_bytes(std::string_view text);
/// Returns the text of a file without its byte order mark, if it has one.
inline std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  return text.substr(text.starts_with(mark) ? mark.size() : 0);
}
/// Returns whether `text` is well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

/// Returns `text` in a form that is safe on a terminal. Bytes that are not UTF-8, and control
/// characters other than line breaks and tabs, are replaced by escapes such as \x1b. Control
/// characters include U+0080 to U+009F and the characters that change the direction of text.
std::string printable(std::string_view text);
/// Returns printable(text) on one line: line breaks and tabs become \x0a and \x09.
std::string printable_line(std::string_view text);

/// Returns the first position in `text`, outside of parentheses, at which one of the separators
/// begins; npos if there is no such position.
size_t find_outside_parentheses(std::string_view text,
                                std::initializer_list<std::string_view> separators);

/// Replaces each occurrence of `what` in `text` by `by`, and returns the new text. `what` must not
/// be empty.
std::string replace_all(std::string_view text, std::string_view what, std::string_view by);

/// Replaces the letters A to Z of `text` by a to z, and returns the new text.
std::string lowercase(std::string text);

/// Formats the arguments as printf does, and returns the text.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// Returns a count, such as the number of parameters, as text: "824", "25.3k", "0.81M", "8.03B".
std::string count_text(double n);
/// Returns a duration as text, such as "31.4 ms", "12.3 s", "15.0 minutes", "5.2 hours" or "346
/// days".
std::string human_time(double seconds);
/// Returns a number as text with at most `digits` significant digits: "0.0032", "3.2e-5".
std::string short_number(double x, int digits);
/// Returns a number with a noun: "1 thread", "2 threads".
std::string quantity(int64_t n, const std::string& noun);

/// Returns the integer that `text` represents; nullopt unless the complete text is an integer from
/// `least` to `most`.
std::optional<int> integer_between(const std::string& text, int least, int most);

/// Parses "8GB", "500 MiB" or "6.5e9" into bytes. Throws Exit::usage for any other text; the
/// message begins with `where`.
int64_t parse_bytes(const std::string& text, const std::string& where = "command line");

}  // namespace lathe
