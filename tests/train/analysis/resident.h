// Forecasts the resident memory of variants of a config by dry runs.
#pragma once

#include <algorithm>
#include <string>

#include "train/analysis/dry_step.h"

namespace lathe::test {

/// Returns the resident bytes that a dry run forecasts for the config at `path` with `keys`. The
/// keys of `more` are added, or replace keys with the same name.
inline int64_t resident_with(const std::string& path, Overrides keys, const Overrides& more) {
  for (const auto& key : more) {
    std::erase_if(keys, [&](const auto& k) { return k.first == key.first; });
    keys.push_back(key);
  }
  return dry_step(load_config(path, keys)).resident();
}

}  // namespace lathe::test
