// Parsed lines of JSON Lines. Private to data/: the headers of the library do not include simdjson.
#pragma once

#include <simdjson.h>

#include <string_view>

#include "data/prepare/documents.h"

namespace lathe {

/// Calls f(line, object) with each line of a part, as each_line does. Throws Exit::data with file
/// and line for a line that is not a JSON object; `what` ends that sentence.
template <class F>
void each_object(const Part& part, const std::string& what, F&& f) {
  simdjson::dom::parser parser;
  const auto check_array = [&](uint64_t line, std::string_view text) {
    const size_t first = text.find_first_not_of(" \t");
    if (line == 1 && first != std::string_view::npos && text[first] == '[') {
      fail(Exit::data, part.file,
           " is a JSON array, and JSON Lines have an object on each line; convert it: python3 -c "
           "'import json, sys; [print(json.dumps(x)) for x in json.load(open(sys.argv[1]))]' ",
           part.file, " > lines.jsonl");
    }
  };
  each_line(part, [&](uint64_t line, std::string_view text) {
    check_array(line, text);
    simdjson::dom::element json;
    if (const auto error = parser.parse(text.data(), text.size()).get(json))
      fail(Exit::data, part.file, ":", line,
           " is not valid JSON: ", simdjson::error_message(error));
    simdjson::dom::object object;
    if (json.get(object) != simdjson::SUCCESS) fail(Exit::data, part.file, ":", line, " ", what);
    f(line, object);
  });
}

}  // namespace lathe
