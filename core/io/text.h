// Text: UTF-8 (RFC 3629), and formatting as printf does.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lathe {

/// Bytes of the code point at `at`, or 0 where it is malformed: cut short, overlong, a surrogate, beyond U+10FFFF.
size_t code_point_length(std::string_view text, size_t at);
/// Where the well-formed UTF-8 that begins at text[begin] ends; of a long one `most` bytes and what is left of a
/// character are looked at.
size_t utf8_end(std::string_view text, size_t begin, size_t most = std::string_view::npos);
/// Whether it is well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

/// `text` with `by` in place of each `what`, which is not empty.
std::string replace_all(std::string_view text, std::string_view what, std::string_view by);

/// What printf would print.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace lathe
