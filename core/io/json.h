// Strict JSON: at most 8 levels deep, no key twice. Keys keep their order.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"

namespace lathe {

using Json = nlohmann::ordered_json;

/// Parses `text`; an error is Exit `code` and begins with `where`.
Json parse_json(std::string_view text, const std::string& where, Exit code);

/// json[key] as a T, or an error that names the key and `where`.
template <class T>
T json_get(const Json& json, const char* key, const std::string& where, Exit code) {
  try {
    return json.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    fail(code, where, ": the field \"", key, "\" is missing or of the wrong type");
  }
}

/// A number for JSON: a non-finite one becomes the string "nan", "inf" or "-inf", never null.
Json json_number(double x);

}  // namespace lathe
