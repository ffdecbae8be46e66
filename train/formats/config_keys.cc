#include "train/formats/config_keys.h"

#include <cmath>

namespace lathe {

ConfigKeys::ConfigKeys(Json json, std::string where)
    : json_(std::move(json)), where_(std::move(where)) {
  if (!json_.is_object()) fail(Exit::checkpoint, where_, " is not a JSON object");
}

bool ConfigKeys::has(const std::string& key) const {
  return json_.contains(key) && !json_.at(key).is_null();
}

bool ConfigKeys::is_null(const std::string& key) const {
  return json_.contains(key) && json_.at(key).is_null();
}

Json* ConfigKeys::take(const std::string& key) {
  taken_.insert(key);
  return has(key) ? &json_[key] : nullptr;
}

void ConfigKeys::refuse(const std::string& key, const std::string& what) const {
  const std::string value = json_.contains(key) ? json_text(json_.at(key)) : "";
  fail(Exit::checkpoint, where_, ": ", key, value.empty() ? "" : " = " + value.substr(0, 100),
       ", but ", what);
}

int64_t ConfigKeys::whole(const std::string& key, int64_t min, int64_t max,
                          std::optional<int64_t> otherwise) {
  if (take(key) == nullptr && otherwise) return *otherwise;
  return json_integer(json_, key.c_str(), min, max, where_, Exit::checkpoint);
}

double ConfigKeys::real(const std::string& key, std::optional<double> otherwise) {
  const Json* value = take(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr || !value->is_number())
    fail(Exit::checkpoint, where_, ": the field \"", key,
         "\" is missing or of the wrong type; it must be a number");
  return value->get<double>();
}

bool ConfigKeys::flag(const std::string& key, bool otherwise) {
  return take(key) == nullptr ? otherwise
                              : json_get<bool>(json_, key.c_str(), where_, Exit::checkpoint);
}

std::string ConfigKeys::text(const std::string& key, const std::string& otherwise) {
  return take(key) == nullptr ? otherwise
                              : json_get<std::string>(json_, key.c_str(), where_, Exit::checkpoint);
}

std::vector<std::string> ConfigKeys::texts(const std::string& key) {
  if (take(key) == nullptr) return {};
  return json_get<std::vector<std::string>>(json_, key.c_str(), where_, Exit::checkpoint);
}

std::vector<int64_t> ConfigKeys::wholes(const std::string& key, int64_t min, int64_t max) {
  const Json* list = take(key);
  if (list == nullptr) return {};
  if (!list->is_array()) refuse(key, "it must be a list of whole numbers");

  std::vector<int64_t> numbers;
  for (const Json& one : *list)
    numbers.push_back(json_integer({{key, one}}, key.c_str(), min, max, where_, Exit::checkpoint));
  return numbers;
}

ConfigKeys ConfigKeys::part(const std::string& key) {
  const Json* value = take(key);
  return {value == nullptr ? Json::object() : *value, where_ + ": " + key};
}

void ConfigKeys::only(const std::string& key, const std::vector<Json>& allowed) {
  const Json* value = take(key);
  if (value == nullptr) return;
  std::string list;
  for (const Json& one : allowed) {
    if (*value == one) return;
    list += (list.empty() ? "" : " or ") + json_text(one);
  }
  refuse(key, "this build computes only " + list);
}

void ConfigKeys::pass(std::initializer_list<const char*> keys) {
  taken_.insert(keys.begin(), keys.end());
}

void ConfigKeys::ignore(const std::string& key) {
  if (!json_.contains(key))
    fail(Exit::usage, "command line: --ignore-key ", key, ": ", where_, " has no such key");
  if (!taken_.insert(key).second)
    fail(Exit::usage, "command line: --ignore-key ", key,
         ": this build knows the key and uses its value in ", where_, "; leave --ignore-key out");
}

void ConfigKeys::finish() const {
  for (const auto& [key, value] : json_.items()) {
    const bool nothing = value.is_null() || value == false ||
                         ((value.is_structured() || value.is_string()) && value.empty());
    if (!nothing && !taken_.contains(key) && !key.starts_with('_'))
      refuse(key,
             "this build does not know whether that changes what the model computes; if not, "
             "remove the key or import the model with --ignore-key " +
                 key);
  }
}

}  // namespace lathe
