// The lines of JSON Lines, parsed. Private to data/: the headers of the library do not include simdjson.
#pragma once

#include <simdjson.h>

#include <algorithm>
#include <string_view>

#include "data/prepare/documents.h"

namespace lathe {

/// Calls f(line, object) with each line of a part, from its place on; `line` counts from 1. Lines of white space are
/// passed over. Exit::data with file and line for one that is no JSON object; `what` ends that sentence.
template <class F>
void each_line(const Part& part, std::string_view text, const std::string& what, F&& f) {
  simdjson::dom::parser parser;
  for (uint64_t line = part.place; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    if (one.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    simdjson::dom::element json;
    if (const auto error = parser.parse(one.data(), one.size()).get(json))
      fail(Exit::data, part.file, ":", line, " is no JSON: ", simdjson::error_message(error));
    simdjson::dom::object object;
    if (json.get(object) != simdjson::SUCCESS) fail(Exit::data, part.file, ":", line, " ", what);
    f(line, object);
  }
}

}  // namespace lathe
