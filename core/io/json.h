// Strict JSON: at most 8 levels deep (unless the caller allows more), at most ten million values,
// no key twice, nothing after its end. Keys keep their order. The time to parse is proportional to
// the length of the text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"

namespace lathe {

/// A JSON value. Objects keep the order in which keys were set.
using Json = nlohmann::ordered_json;

/// Parses `text`. Throws an Error with `code`, whose message begins with `where`, if it is not
/// strict JSON as described above, with at most `depth` levels.
Json parse_json(std::string_view text, const std::string& where, Exit code, size_t depth = 8);

/// Returns `json` as text: on one line if `indent` is -1, otherwise indented by `indent` spaces per
/// level. Bytes of a string that are not UTF-8, which are possible in a path, become U+FFFD. This
/// function exists because the library's serializer is a template that every source file would
/// otherwise instantiate.
std::string json_text(const Json& json, int indent = -1);

/// Returns json[key] as a T: a string, a bool, a list or a Json. For numbers, use json_integer()
/// and json_real(). Throws an error that names the key and `where`.
template <class T>
T json_get(const Json& json, const char* key, const std::string& where, Exit code) {
  try {
    return json.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    fail(code, where, ": the field \"", key, "\" is missing or of the wrong type");
  }
}

/// Returns json[key] as an integer from `min` to `max`. Throws an error that names `where`, the
/// key, its value and the bounds. A number with a fraction or an exponent is refused.
int64_t json_integer(const Json& json, const char* key, int64_t min, int64_t max,
                     const std::string& where, Exit code);
/// Returns json[key], which must be a number, or a string that json_number() returns for a
/// non-finite number. Throws an error that names the key and `where`.
double json_real(const Json& json, const char* key, const std::string& where, Exit code);

/// Returns x as a JSON value. A non-finite number becomes the string "nan", "inf" or "-inf", never
/// null.
Json json_number(double x);

}  // namespace lathe
