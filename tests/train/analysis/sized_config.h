// Creates configs of model kinds with given sizes, for tests of forecasts.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "nn/models/model.h"

namespace lathe::test {

using Sizes = std::map<std::string, int64_t>;

/// Returns the config of a model kind, with each of `sizes` that is a key of the kind. Returns
/// nullopt if the kind has no key `first`, or if the kind's check refuses the sizes.
inline std::optional<AnyConfig> sized_config(const ModelKind& kind, const std::string& first,
                                             const Sizes& sizes) {
  AnyConfig config = kind.config;
  if (config.find<int64_t>(first) == nullptr) return std::nullopt;
  for (const auto& [key, size] : sizes) {
    if (int64_t* const found = config.find<int64_t>(key)) *found = size;
  }
  if (int64_t* const vocabulary = config.find<int64_t>("vocab_size")) *vocabulary = 50257;
  return kind.check(config) ? std::nullopt : std::optional(config);
}

}  // namespace lathe::test
