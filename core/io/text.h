// Text: UTF-8 (RFC 3629), and formatting as printf does.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lathe {

/// Bytes of the code point at `at`, or 0 where it is malformed: cut short, overlong, a surrogate,
/// beyond U+10FFFF.
size_t code_point_length(std::string_view text, size_t at);
/// Where the well-formed UTF-8 that begins at text[begin] ends; of a long one `most` bytes and what
/// is left of a character are looked at.
size_t utf8_end(std::string_view text, size_t begin, size_t most = std::string_view::npos);
/// Returns how many bytes at the end of `text` are the beginning of a code point whose rest is
/// missing: 0 to 3.
size_t incomplete_bytes(std::string_view text);
/// Whether it is well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

/// Returns `text` as it may be shown on a terminal: control characters other than line breaks and
/// tabs, also those of Latin-1 (U+0080 to U+009F), and bytes that are not UTF-8 become \x1b and the
/// like, which a terminal does not act on.
std::string printable(std::string_view text);
/// The same in one line: with line breaks and tabs as \x0a and \x09.
std::string printable_line(std::string_view text);

/// `text` with `by` in place of each `what`, which is not empty.
std::string replace_all(std::string_view text, std::string_view what, std::string_view by);

/// What printf would print.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace lathe
