// Parses JSON Lines. Only sources in data/ may include this header, because it includes simdjson,
// which the library's public headers do not.
#pragma once

#include <simdjson.h>

#include <algorithm>
#include <string_view>

#include "data/prepare/documents.h"

namespace lathe {

/// Calls f(line, object) for each line of a part, except for lines of only white space. `line` is
/// the line's number in the file, from 1. `object` is the parsed line, which is valid only during
/// the call. Throws Exit::data, with file and line, for a line that is not a JSON object. If the
/// line is valid JSON, the message ends with `what`, such as "is not a preference". If the first
/// line begins with [, the message instead names the file and explains how to convert a JSON array.
template <class F>
void each_object(const Part& part, const std::string& what, F&& f) {
  simdjson::dom::parser parser;
  const auto check_array = [&](uint64_t line, std::string_view text) {
    if (line != 1 ||
        !text.substr(std::min(text.find_first_not_of(" \t"), text.size())).starts_with('['))
      return;
    fail(Exit::data, part.file,
         " is a JSON array, and JSON Lines have an object on each line; convert it: python3 -c "
         "'import json, sys; [print(json.dumps(x)) for x in json.load(open(sys.argv[1]))]' ",
         part.file, " > lines.jsonl");
  };
  each_line(part, [&](uint64_t line, std::string_view text) {
    simdjson::dom::element json;
    simdjson::dom::object object;
    const auto error = parser.parse(text.data(), text.size()).get(json);
    const bool is_object = !error && json.get(object) == simdjson::SUCCESS;
    if (!is_object) check_array(line, text);
    if (error)
      fail(Exit::data, part.file, ":", line,
           " is not valid JSON: ", simdjson::error_message(error));
    if (!is_object) fail(Exit::data, part.file, ":", line, " ", what);
    f(line, object);
  });
}

}  // namespace lathe
