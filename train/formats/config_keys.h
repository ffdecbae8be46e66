// Reads the keys of a config.json in Hugging Face's format. Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/io/json.h"

namespace lathe {

/// The keys of a JSON object. Each key must either be read or be passed over by name. finish()
/// refuses all other keys, since an unknown key may change what the model computes. Errors are
/// Exit::checkpoint and name the key. A key whose value is null counts as absent.
class ConfigKeys {
 public:
  /// `where` names the object in errors, for example as the path of its file.
  ConfigKeys(Json json, std::string where);

  bool has(const std::string& key) const;
  /// Returns whether the key has the value null.
  bool is_null(const std::string& key) const;
  /// Returns an integer from `min` to `max`, or `otherwise` if the key is absent. If `otherwise` is
  /// not given, the key is required.
  int64_t whole(const std::string& key, int64_t min, int64_t max,
                std::optional<int64_t> otherwise = std::nullopt);
  /// Returns a number, or `otherwise` if the key is absent. If `otherwise` is not given, the key is
  /// required.
  double real(const std::string& key, std::optional<double> otherwise = std::nullopt);
  /// Returns a boolean or a string, or `otherwise` if the key is absent.
  bool flag(const std::string& key, bool otherwise);
  std::string text(const std::string& key, const std::string& otherwise);
  /// Returns a list of texts. The list is empty if the key is absent.
  std::vector<std::string> texts(const std::string& key);
  /// Returns a list of integers from `min` to `max`. The list is empty if the key is absent.
  std::vector<int64_t> wholes(const std::string& key, int64_t min, int64_t max);
  /// Returns the keys of the object that is the value of `key`. Returns no keys if `key` is absent.
  /// Errors name both `key` and the key in the object.
  ConfigKeys part(const std::string& key);
  /// Throws unless the key is absent or its value is one of `allowed`.
  void only(const std::string& key, const std::vector<Json>& allowed);
  /// Passes over keys that do not change what the model computes.
  void pass(std::initializer_list<const char*> keys);
  /// Passes over a key because the user requests it. Throws Exit::usage if there is no such key, or
  /// if the key was already read or passed over.
  void ignore(const std::string& key);
  /// Throws for keys that were neither read nor passed over. Exceptions are keys whose value is
  /// null, false or empty, and keys that begin with an underscore, which are notes of Hugging
  /// Face's transformers library.
  void finish() const;
  /// Throws Exit::checkpoint with the message "WHERE: KEY = VALUE, but WHAT".
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;

 private:
  Json* take(const std::string& key);

  Json json_;
  std::string where_;
  std::set<std::string> taken_;
};

}  // namespace lathe
