// Declares the operations on the values of Jinja's expressions. A value is JSON; an undefined value
// is a discarded JSON value. Only sources in data/tokenizers may use this header.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "core/io/json.h"

namespace lathe {

/// Thrown if a template can't be rendered.
struct JinjaError : std::exception {};

namespace jinja {

/// The largest size of a text in bytes. This limit is large enough because templates are tested
/// with short messages.
constexpr size_t longest_text = size_t{1} << 16;

/// Returns the size of a value: the bytes of its texts, and an allowance for each member or
/// element.
size_t bytes(const Json& x);
/// Returns the undefined value.
inline Json undefined() { return Json(Json::value_t::discarded); }
/// Returns whether a value counts as true.
bool truth(const Json& x);
/// Returns text without the white space at its beginning (`left`), its end (`right`) or both.
std::string trimmed(const std::string& text, bool left = true, bool right = true);
/// Returns a value as {{ }} prints it.
std::string text(const Json& x);
/// Returns a member of an object, or an element of a list.
Json member(const Json& x, const Json& key);
/// Returns a list's elements from `begin` to `end`, which mean the same as in a Python slice.
Json sliced(const Json& x, const Json& begin, const Json& end);
/// Returns the result of the binary operator `mark`, such as "==", "in", "+" or "~".
Json operation(const std::string& mark, const Json& a, const Json& b);
/// Returns the result of a string's or an object's method.
Json method(const Json& x, const std::string& name, const std::vector<Json>& given);
/// Returns the result of a filter.
Json filter(const std::string& name, const Json& x, const std::vector<Json>& given);
/// Returns the result of a test, such as `x is defined`.
bool is_kind(const Json& x, const std::string& name);

}  // namespace jinja
}  // namespace lathe
