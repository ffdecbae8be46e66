// A config.json of Hugging Face's form, taken apart key by key. No LibTorch header.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/io/json.h"

namespace lathe {

/// The keys of a JSON object, of which each is taken or passed over by name; finish() refuses what
/// is left, since a key that nobody knows may change what the model computes. Errors are
/// Exit::checkpoint and name the key. A key with null counts as absent.
class ConfigKeys {
 public:
  ConfigKeys(Json json, std::string where);

  bool has(const std::string& key) const;
  /// Whether it stands there as null.
  bool is_null(const std::string& key) const;
  /// Numbers within bounds. Without `otherwise` the key must be there.
  int64_t whole(const std::string& key, int64_t min, int64_t max,
                std::optional<int64_t> otherwise = std::nullopt);
  double real(const std::string& key, std::optional<double> otherwise = std::nullopt);
  bool flag(const std::string& key, bool otherwise);
  std::string text(const std::string& key, const std::string& otherwise);
  /// A list of texts; empty where it is absent.
  std::vector<std::string> texts(const std::string& key);
  /// An object within, whose errors name both keys; an empty one where it is absent.
  ConfigKeys part(const std::string& key);
  /// Refuses any value but these; what is absent passes.
  void only(const std::string& key, const std::vector<Json>& allowed);
  /// Names keys that change nothing of what the model computes.
  void pass(std::initializer_list<const char*> keys);
  /// Refuses what was neither taken nor passed, but for null, false and what is empty.
  void finish() const;
  /// "WHERE: KEY = VALUE, and " what, as an error.
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;

 private:
  Json* take(const std::string& key);

  Json json_;
  std::string where_;
  std::set<std::string> taken_;
};

}  // namespace lathe
