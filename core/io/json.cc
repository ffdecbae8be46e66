#include "core/io/json.h"

#include <cmath>
#include <set>
#include <vector>

namespace lathe {

Json parse_json(std::string_view text, const std::string& where, Exit code) {
  constexpr int max_depth = 8;
  std::vector<std::set<std::string>> keys;
  const Json::parser_callback_t check = [&](int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= max_depth) fail(code, where, ": JSON deeper than ", max_depth, " levels");
      keys.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      keys.pop_back();
    } else if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      fail(code, where, ": the key \"", value.get<std::string>(), "\" stands twice");
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const nlohmann::json::exception& e) {
    std::string what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const auto end = what.find("] "); end != std::string::npos) what = what.substr(end + 2);
    fail(code, where, ": ", what);
  }
}

Json json_number(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
}

}  // namespace lathe
