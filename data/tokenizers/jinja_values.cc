#include "data/tokenizers/jinja_values.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace lathe::jinja {
namespace {

std::string string_of(const Json& value) {
  if (!value.is_string()) throw JinjaError();
  return value.get<std::string>();
}

/// Joins two texts. Throws JinjaError if the result is too long, so that a template can't fill the
/// memory by doubling a text.
std::string joined(const std::string& a, const std::string& b) {
  if (a.size() + b.size() > longest_text) throw JinjaError();
  return a + b;
}

/// Returns an integer. Sums and products of two such integers can't overflow.
int64_t integer_of(const Json& value) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  const auto n = value.get<int64_t>();
  if (n < -most || n > most) throw JinjaError();
  return n;
}

Json add(const Json& a, const Json& b) {
  if (a.is_string() && b.is_string()) return joined(a.get<std::string>(), b.get<std::string>());
  if (a.is_number_integer() && b.is_number_integer()) return integer_of(a) + integer_of(b);
  if (!a.is_array() || !b.is_array() || a.size() + b.size() > 1000) throw JinjaError();
  Json made = a;
  for (const Json& one : b) made.push_back(one);
  return made;
}

bool contains(const Json& x, const Json& item) {
  if (x.is_string()) return x.get<std::string>().find(string_of(item)) != std::string::npos;
  if (x.is_object()) return item.is_string() && x.contains(item.get<std::string>());
  if (!x.is_array()) throw JinjaError();
  return std::find(x.begin(), x.end(), item) != x.end();
}

bool are_equal(const Json& a, const Json& b) {
  if (a.is_discarded() || b.is_discarded()) return a.is_discarded() && b.is_discarded();
  // As in Python, true is 1 and false is 0.
  const auto number = [](const Json& x) {
    return x.is_boolean() ? Json(x.get<bool>() ? 1 : 0) : x;
  };
  return number(a) == number(b);
}

}  // namespace

std::string trimmed(const std::string& text, bool left, bool right) {
  // Python's str.strip() removes these characters: U+0009 to U+000D, U+001C to U+0020, U+0085,
  // U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F and U+3000.
  static const std::vector<std::string_view> spaces{
      "\t",           "\n",           "\v",           "\f",           "\r",
      "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
      "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
      "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
      "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  std::string_view rest = text;
  while (left) {
    const auto space = std::ranges::find_if(spaces, [&](auto s) { return rest.starts_with(s); });
    if (space == spaces.end()) break;
    rest.remove_prefix(space->size());
  }
  while (right) {
    const auto space = std::ranges::find_if(spaces, [&](auto s) { return rest.ends_with(s); });
    if (space == spaces.end()) break;
    rest.remove_suffix(space->size());
  }
  return std::string(rest);
}

size_t bytes(const Json& x) {
  if (x.is_string()) return x.get_ref<const std::string&>().size();
  size_t sum = 0;
  if (x.is_structured()) {
    for (const auto& [key, value] : x.items()) sum += sizeof(Json) + key.size() + bytes(value);
  }
  return sum;
}

bool truth(const Json& x) {
  if (x.is_discarded() || x.is_null()) return false;
  if (x.is_boolean()) return x.get<bool>();
  if (x.is_number()) return x.get<double>() != 0;
  return x.is_string() ? !x.get<std::string>().empty() : !x.empty();
}

std::string text(const Json& x) {
  if (x.is_discarded()) return "";
  if (x.is_null()) return "None";
  if (x.is_boolean()) return x.get<bool>() ? "True" : "False";
  if (x.is_number_integer()) return std::to_string(x.get<int64_t>());
  return string_of(x);
}

/// Returns a member of an object, or an element of a list.
Json member(const Json& x, const Json& key) {
  if (x.is_discarded()) throw JinjaError();
  if (x.is_object() && key.is_string()) {
    const auto found = x.find(key.get<std::string>());
    return found == x.end() ? undefined() : *found;
  }
  if (x.is_array() && key.is_number_integer()) {
    const auto n = static_cast<int64_t>(x.size());
    const auto i = key.get<int64_t>();
    const int64_t index = i < 0 ? i + n : i;
    return index < 0 || index >= n ? undefined() : x[static_cast<size_t>(index)];
  }
  if (key.is_string()) return undefined();
  throw JinjaError();
}

/// Returns a list's elements from `begin` to `end`, which mean the same as in a Python slice.
Json sliced(const Json& x, const Json& begin, const Json& end) {
  if (!x.is_array()) throw JinjaError();
  const auto n = static_cast<int64_t>(x.size());
  const auto bound = [&](const Json& value, int64_t otherwise) {
    if (value.is_discarded()) return otherwise;
    if (!value.is_number_integer()) throw JinjaError();
    const auto i = value.get<int64_t>();
    return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n);
  };
  Json made = Json::array();
  for (int64_t i = bound(begin, 0); i < bound(end, n); ++i)
    made.push_back(x[static_cast<size_t>(i)]);
  return made;
}

Json operation(const std::string& mark, const Json& a, const Json& b) {
  if (mark == "==") return are_equal(a, b);
  if (mark == "!=") return !are_equal(a, b);
  if (mark == "in") return contains(b, a);
  if (mark == "not in") return !contains(b, a);
  if (mark == "+") return add(a, b);
  if (mark == "~") return joined(text(a), text(b));
  if (!a.is_number_integer() || !b.is_number_integer()) throw JinjaError();
  const int64_t x = integer_of(a), y = integer_of(b);
  if (mark == "-") return x - y;
  if (mark == "*") return x * y;
  if (mark == "<") return x < y;
  if (mark == "<=") return x <= y;
  if (mark == ">") return x > y;
  if (mark == ">=") return x >= y;
  if (mark == "%" && y > 0) return ((x % y) + y) % y;
  throw JinjaError();
}

/// Returns the result of a string's or an object's method.
Json method(const Json& x, const std::string& name, const std::vector<Json>& given) {
  if (x.is_object() && name == "get" && !given.empty()) {
    Json found = member(x, given[0]);
    if (!found.is_discarded()) return found;
    return given.size() > 1 ? given[1] : Json();
  }
  const std::string own = string_of(x);
  if (given.empty() && (name == "strip" || name == "lstrip" || name == "rstrip"))
    return trimmed(own, name != "rstrip", name != "lstrip");
  if (given.size() != 1) throw JinjaError();
  if (name == "startswith") return own.starts_with(string_of(given[0]));
  if (name == "endswith") return own.ends_with(string_of(given[0]));
  throw JinjaError();
}

Json filter(const std::string& name, const Json& x, const std::vector<Json>& given) {
  if (name == "default" && given.size() == 1) return x.is_discarded() ? given[0] : x;
  if (!given.empty()) throw JinjaError();
  if (name == "trim") return trimmed(text(x));
  if (name == "string") return text(x);
  if ((name == "length" || name == "count") && x.is_structured())
    return static_cast<int64_t>(x.size());
  if (name == "first" && x.is_array()) return member(x, 0);
  if (name == "last" && x.is_array()) return member(x, -1);
  throw JinjaError();
}

bool is_kind(const Json& x, const std::string& name) {
  if (name == "defined") return !x.is_discarded();
  if (name == "undefined") return x.is_discarded();
  if (name == "none") return x.is_null();
  if (name == "string") return x.is_string();
  if (name == "mapping") return x.is_object();
  if (name == "sequence" || name == "iterable") return x.is_structured() || x.is_string();
  if (name == "boolean") return x.is_boolean();
  if (name == "number") return x.is_number();
  if (name == "true" || name == "false") return x.is_boolean() && x.get<bool>() == (name == "true");
  throw JinjaError();
}

}  // namespace lathe::jinja
