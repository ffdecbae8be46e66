// The verbs of the command line: what each takes and does. Parsing and help are in cli.cc.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "train/run_config.h"

namespace lathe {

/// The words behind a verb: flags by name, at most once each, and what stands alone.
struct Words {
  std::map<std::string, std::string> flags;
  std::vector<std::string> rest;

  std::string get(const std::string& name, const std::string& otherwise) const {
    const auto found = flags.find(name);
    return found == flags.end() ? otherwise : found->second;
  }
  /// A flag as a number within bounds.
  double number(const std::string& name, double otherwise, const Rule& rule, bool whole) const;
};

struct Verb {
  const char* name;
  const char* usage;
  const char* doc;
  std::vector<std::pair<const char*, const char*>> flags;  // name, doc
  bool config_keys;
  size_t min_words, max_words;
  std::function<Exit(const Words&)> run;
};

/// The config that word `at` names, with the flags that are keys; sets the console's level.
LoadedConfig config_of(const Words& words, size_t at = 0);

/// All of them, in the order that help shows.
const std::vector<Verb>& verbs();

}  // namespace lathe
