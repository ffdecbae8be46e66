#include "core/io/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "core/error.h"

namespace lathe {

size_t code_point_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(at);
  const size_t n = first < 0x80                    ? 1
                   : first >= 0xC2 && first < 0xE0 ? 2
                   : first >= 0xE0 && first < 0xF0 ? 3
                   : first >= 0xF0 && first < 0xF5 ? 4
                                                   : 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  const unsigned second = byte(at + 1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return n;
}

size_t utf8_end(std::string_view text, size_t begin, size_t most) {
  size_t end = begin;
  while (end < text.size() && end - begin < most) {
    uint64_t eight = 0;  // read eight bytes, so that eight ASCII characters are skipped in one step
    if (text.size() - end >= sizeof eight && most - (end - begin) >= sizeof eight) {
      std::memcpy(&eight, text.data() + end, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        end += sizeof eight;
        continue;
      }
    }
    const size_t n = code_point_length(text, end);
    if (n == 0) break;
    end += n;
  }
  return end;
}

size_t incomplete_bytes(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if ((byte & 0xC0) == 0x80) continue;  // a continuation byte of an earlier code point
    const size_t length = byte < 0xC2 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 1;
    return n < length ? n : 0;
  }
  return 0;
}

size_t find_outside_parentheses(std::string_view text,
                                std::initializer_list<std::string_view> separators) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const std::string_view separator : separators) {
      if (depth == 0 && text.substr(i).starts_with(separator)) return i;
    }
    depth += text[i] == '(' ? 1 : text[i] == ')' && depth > 0 ? -1 : 0;
  }
  return std::string_view::npos;
}

bool is_utf8(std::string_view text) { return utf8_end(text, 0) == text.size(); }

namespace {

/// Returns whether a character is a control character that changes the direction of the text after
/// it: U+202A to U+202E and U+2066 to U+2069. With such characters, text can appear on a terminal
/// in another order than it has in memory.
bool is_bidi_control(std::string_view c) {
  return c.size() == 3 && ((c.starts_with("\xE2\x80") && c[2] >= '\xAA' && c[2] <= '\xAE') ||
                           (c.starts_with("\xE2\x81") && c[2] >= '\xA6' && c[2] <= '\xA9'));
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (size_t i = 0, n = 0; i < text.size(); i += n) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t length = code_point_length(text, i);
    n = std::max<size_t>(length, 1);
    const bool is_latin1_control =
        first == 0xC2 && static_cast<unsigned char>(text[i + n - 1]) < 0xA0;
    const bool is_control =
        first < 0x20 || first == 0x7F || is_latin1_control || is_bidi_control(text.substr(i, n));
    if (length > 0 && (!is_control || first == '\n' || first == '\t')) {
      out.append(text.substr(i, n));
      continue;
    }
    for (const char byte : text.substr(i, n))
      out += format("\\x%02x", static_cast<unsigned char>(byte));
  }
  return out;
}

std::string printable_line(std::string_view text) {
  return replace_all(replace_all(printable(text), "\n", "\\x0a"), "\t", "\\x09");
}

std::string lowercase(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::string replace_all(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  out.reserve(text.size());
  for (size_t next = 0; (next = text.find(what)) != std::string_view::npos;
       text.remove_prefix(next + what.size()))
    out.append(text.substr(0, next)).append(by);
  return out.append(text);
}

std::string format(const char* pattern, ...) {
  va_list args, again;
  va_start(args, pattern);
  va_copy(again, args);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, pattern, args)), ' ');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(args);
  va_end(again);
  return text;
}

std::optional<int> integer_between(const std::string& text, int least, int most) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value < least || value > most) return std::nullopt;
  return value;
}

std::string count_text(double n) {
  if (n < 1e4) return format("%.0f", n);
  if (n < 1e5) return format("%.1fk", n / 1e3);
  return n < 1e9 ? format("%.2fM", n / 1e6) : format("%.2fB", n / 1e9);
}

std::string human_time(double seconds) {
  constexpr double hour = 3600, day = 24 * hour;
  if (seconds < 1) return format("%.1f ms", 1e3 * seconds);
  if (seconds < 600) return format("%.1f s", seconds);
  if (seconds < 10 * hour) {
    return seconds < 2 * hour ? format("%.1f minutes", seconds / 60)
                              : format("%.1f hours", seconds / hour);
  }
  if (seconds < 3 * day) return format("%.0f hours", seconds / hour);
  return format(seconds < 10 * day ? "%.1f days" : "%.0f days", seconds / day);
}

std::string short_number(double x, int digits) {
  std::string text = format("%.*g", digits, x);
  // printf writes an exponent with at least two digits. Remove leading zeros.
  if (const size_t e = text.find('e'); e != std::string::npos) {
    const size_t first = e + 2;
    while (first + 1 < text.size() && text[first] == '0') text.erase(first, 1);
    if (text[e + 1] == '+') text.erase(e + 1, 1);
  }
  return text;
}

std::string quantity(int64_t n, const std::string& noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

int64_t parse_bytes(const std::string& text, const std::string& where) {
  size_t end = 0;
  double number = 0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }

  std::string unit = text.substr(std::min(end, text.size()));
  unit.erase(std::remove(unit.begin(), unit.end(), ' '), unit.end());
  unit = lowercase(unit);

  constexpr std::pair<const char*, double> units[]{
      {"", 1},         {"b", 1},        {"kb", 1e3},     {"mb", 1e6},     {"gb", 1e9}, {"tb", 1e12},
      {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}, {"g", 1e9},  {"m", 1e6}};
  for (const auto& [name, factor] : units) {
    if (end > 0 && unit == name && std::isfinite(number) && number > 0 && number * factor < 0x1p62)
      return static_cast<int64_t>(number * factor);
  }
  fail(Exit::usage, where, ": ", text,
       " is not an amount of memory; write it as 8GB, 500MB or 16GiB");
}

}  // namespace lathe
