// Strict JSON: at most 8 levels deep and ten million values, no key twice, nothing behind its end.
// Keys keep their order. Reading takes time in proportion to the text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"

namespace lathe {

/// Keeps the order in which keys were set.
using Json = nlohmann::ordered_json;

/// Parses `text`; an error is Exit `code` and begins with `where`.
Json parse_json(std::string_view text, const std::string& where, Exit code);

/// Returns `json` as text: on one line, or with an indent of `indent` spaces a level. Bytes of a
/// string that are not UTF-8, as a path may have, become U+FFFD. In a function, since the library's
/// serializer is a template of which each part of the build would have its own.
std::string json_text(const Json& json, int indent = -1);

/// json[key] as a T (text, a flag, a list; numbers: json_whole, json_real), or an error that names
/// the key and `where`.
template <class T>
T json_get(const Json& json, const char* key, const std::string& where, Exit code) {
  try {
    return json.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    fail(code, where, ": the field \"", key, "\" is missing or of the wrong type");
  }
}

/// json[key] as a whole number from `min` to `max`; else an error that names `where`, the key, what
/// stands there and the bounds. A number with a fraction or an exponent is none.
int64_t json_whole(const Json& json, const char* key, int64_t min, int64_t max,
                   const std::string& where, Exit code);
/// json[key] as a number that json_number wrote.
double json_real(const Json& json, const char* key, const std::string& where, Exit code);

/// A number for JSON: a non-finite one becomes the string "nan", "inf" or "-inf", never null.
Json json_number(double x);

}  // namespace lathe
