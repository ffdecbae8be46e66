// Declares functions that parse and write strict JSON. A text may have at most 8 levels, unless the
// caller allows more, and at most ten million values. No key of an object may occur twice, and
// nothing may follow the end of the value. Keys keep their order. The time to parse is proportional
// to the length of the text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"

namespace lathe {

/// A JSON value. Objects keep the order in which keys were set.
using Json = nlohmann::ordered_json;

/// Parses `text`. Throws an Error with `code` if the text is not strict JSON as described above, or
/// has more than `depth` levels. The message begins with `where`.
Json parse_json(std::string_view text, const std::string& where, Exit code, size_t depth = 8);

/// Returns `json` as text: on one line if `indent` is -1, otherwise indented by `indent` spaces per
/// level. Strings may contain bytes that are not UTF-8, for example in a path. These bytes become
/// U+FFFD. The serializer of nlohmann/json is a template; with this function, only one source file
/// instantiates the template.
std::string json_text(const Json& json, int indent = -1);

/// Returns json[key] as a T: a string, a bool, a list or a Json. For numbers, use json_integer()
/// and json_real(). If the key is missing or has another type, throws an error with `code` that
/// names the key and `where`.
template <class T>
T json_get(const Json& json, const char* key, const std::string& where, Exit code) {
  try {
    return json.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    fail(code, where, ": the field \"", key, "\" is missing or of the wrong type");
  }
}

/// Returns json[key] as an integer from `min` to `max`. Throws an error with `code` for any other
/// value, even for a number that is written with a fraction or an exponent. The message names
/// `where`, the key, its value and the bounds.
int64_t json_integer(const Json& json, const char* key, int64_t min, int64_t max,
                     const std::string& where, Exit code);
/// Returns json[key] as a number. The value must be a number, or a string that json_number()
/// returns for a non-finite number. For any other value, throws an error with `code` that names the
/// key and `where`.
double json_real(const Json& json, const char* key, const std::string& where, Exit code);

/// Returns x as a JSON value. A non-finite number becomes the string "nan", "inf" or "-inf", never
/// null.
Json json_number(double x);

}  // namespace lathe
