#include "core/io/json.h"

#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace lathe {
namespace {

constexpr size_t max_values = 10'000'000;

/// Builds the document from the parser's events. The library's builder would search all earlier
/// keys of an object for each new key. This builder appends the key, and uses a set to detect keys
/// that occur twice.
class Builder {
 public:
  Builder(const std::string& where, Exit code, size_t depth)
      : where_(where), code_(code), depth_(depth) {}
  Json take() { return std::move(root_); }

  bool null() { return put(nullptr); }
  bool boolean(bool v) { return put(v); }
  bool number_integer(Json::number_integer_t v) { return put(v); }
  bool number_unsigned(Json::number_unsigned_t v) { return put(v); }
  bool number_float(Json::number_float_t v, const std::string&) { return put(v); }
  bool string(std::string& v) { return put(std::move(v)); }
  bool binary(Json::binary_t&) { return false; }  // JSON text has no binary values
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& k) {
    if (!open_.back().keys.insert(k).second)
      fail(code_, where_, ": the key \"", k, "\" occurs twice");
    open_.back().node->get_ref<Json::object_t&>().emplace_back(std::move(k), Json());
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) {
    std::string what =
        e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const auto end = what.find("] "); end != std::string::npos) what = what.substr(end + 2);
    fail(code_, where_, ": ", what);
  }

 private:
  struct Level {
    Json* node;  // its address is stable, since its parent does not grow while this level is open
    std::unordered_set<std::string> keys;
  };

  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == depth_)
      fail(code_, where_, ": the JSON is nested deeper than ", depth_, " levels");
    open_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  Json* place(Json value) {
    if (++values_ > max_values)
      fail(code_, where_, ": the JSON has more than ", max_values, " values");
    if (open_.empty()) return &(root_ = std::move(value));
    Json& parent = *open_.back().node;
    if (parent.is_array()) return &parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    return &(parent.get_ref<Json::object_t&>().back().second = std::move(value));
  }

  const std::string& where_;
  Exit code_;
  size_t depth_;
  Json root_;
  std::vector<Level> open_;
  size_t values_ = 0;
};

const Json* member(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, Exit code, size_t depth) {
  // The library would treat a NUL as the end of the text and ignore the bytes after it.
  if (const auto at = text.find('\0'); at != std::string_view::npos)
    fail(code, where, ": byte ", at, " is NUL, which JSON does not allow");
  Builder builder(where, code, depth);
  Json::sax_parse(text, &builder);
  return builder.take();
}

int64_t json_integer(const Json& json, const char* key, int64_t min, int64_t max,
                     const std::string& where, Exit code) {
  const Json* value = member(json, key);
  if (value == nullptr)
    fail(code, where, ": the field \"", key, "\" is missing or of the wrong type");
  const bool fits =
      value->is_number_integer() &&
      !(value->is_number_unsigned() &&
        value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) &&
      value->get<int64_t>() >= min && value->get<int64_t>() <= max;
  if (!fits) {
    const std::string text = value->is_structured() ? value->type_name() : json_text(*value);
    fail(code, where, ": \"", key, "\" is ", text.substr(0, 100),
         "; it must be a whole number from ", min, " to ", max);
  }
  return value->get<int64_t>();
}

double json_real(const Json& json, const char* key, const std::string& where, Exit code) {
  const Json* value = member(json, key);
  if (value != nullptr && value->is_number()) return value->get<double>();
  for (const double x : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    if (value != nullptr && *value == json_number(x)) return x;
  }
  fail(code, where, ": the field \"", key,
       "\" is missing or of the wrong type; it must be a number");
}

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json json_number(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
}

}  // namespace lathe
