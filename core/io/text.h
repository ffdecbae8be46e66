// Text: UTF-8 (RFC 3629), and formatting as printf does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// Returns the number of bytes of the code point at `at`, or 0 if it is malformed: cut short,
/// overlong, a surrogate, beyond U+10FFFF.
size_t code_point_length(std::string_view text, size_t at);
/// Returns where the well-formed UTF-8 that begins at text[begin] ends. Reads at most `most` bytes
/// and the remainder of a character.
size_t utf8_end(std::string_view text, size_t begin, size_t most = std::string_view::npos);
/// Returns how many bytes at the end of `text` begin a code point that is incomplete: 0 to 3.
size_t incomplete_bytes(std::string_view text);
/// Returns the text of a file without the byte order mark that it may begin with.
inline std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  return text.substr(text.starts_with(mark) ? mark.size() : 0);
}
/// Returns whether `text` is well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

/// Returns `text` in a form that is safe on a terminal: control characters other than line breaks
/// and tabs, including those of Latin-1 (U+0080 to U+009F) and those that change the direction of
/// text, and bytes that are not UTF-8 become \x1b and the like.
std::string printable(std::string_view text);
/// Returns the same in one line: line breaks and tabs become \x0a and \x09.
std::string printable_line(std::string_view text);

/// Returns where one of the separators first begins in `text` outside of parentheses; npos if
/// nowhere.
size_t find_outside_parentheses(std::string_view text,
                                std::initializer_list<std::string_view> separators);

/// Returns `text` with `by` in place of each `what`, which must not be empty.
std::string replace_all(std::string_view text, std::string_view what, std::string_view by);

/// Returns `text` with a to z in place of A to Z.
std::string lowercase(std::string text);

/// Returns what printf would print.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// Returns a count of parameters or the like: "824", "25.3k", "0.81M", "8.03B".
std::string count_text(double n);
/// Returns a time such as "31.4 ms", "12.3 s", "15.0 minutes", "5.2 hours" or "346 days".
std::string human_time(double seconds);
/// Returns a number with at most `digits` significant digits: "0.0032", "3.2e-5".
std::string short_number(double x, int digits);
/// Returns "1 thread", "2 threads".
std::string quantity(int64_t n, const std::string& noun);

/// Returns the integer that `text` is. Returns nullopt unless the complete text is an integer from
/// `least` to `most`.
std::optional<int> integer_between(const std::string& text, int least, int most);

/// Parses "8GB", "500 MiB" or "6.5e9" into bytes. Throws Exit::usage for any other text; the
/// message begins with `where`.
int64_t parse_bytes(const std::string& text, const std::string& where = "command line");

}  // namespace lathe
