// The verbs of the command line: what each takes and does. Parsing and help are in cli.cc.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "train/config/run_config.h"

namespace lathe {

/// What stands behind a verb: flags by name, at most once each, and the words that stand alone.
struct Arguments {
  std::string verb;
  std::map<std::string, std::string> flags;
  std::vector<std::string> words;

  std::string get(const std::string& name, const std::string& otherwise) const {
    const auto found = flags.find(name);
    return found == flags.end() ? otherwise : found->second;
  }
  /// A flag that is true or false; false where it is not given.
  bool is_true(const std::string& name) const;
  /// A flag as a number within bounds, written as read_value takes it.
  double number(const std::string& name, double otherwise, const Rule& rule, bool whole) const;
};

struct Verb {
  const char* name;
  const char* usage;
  const char* doc;
  const char* example;                                     // behind "lathe "
  std::vector<std::pair<const char*, const char*>> flags;  // name, doc
  bool config_keys;                                        // takes those as flags too
  size_t min_words, max_words;
  std::function<Exit(const Arguments&)> run;
};

/// The config that word `at` names, with the flags that are keys; sets the console's level.
LoadedConfig load_config_argument(const Arguments& arguments, size_t at = 0);

/// All of them, in the order that help shows.
const std::vector<Verb>& verbs();

}  // namespace lathe
