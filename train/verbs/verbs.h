// Verbs of the command line. One is a file in this folder and a line in the table of verbs.cc (or,
// in a program of your own, a call of add_verb). Parsing and help are in cli.cc.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "train/config/run_config.h"
#include "train/run/load.h"
#include "train/tasks/generate.h"

namespace lathe {

/// What stands behind a verb: flags by name, at most once each unless the verb says otherwise, and
/// the words that stand alone.
struct Arguments {
  std::string verb;
  std::map<std::string, std::string> flags;
  std::map<std::string, std::vector<std::string>>
      lists{};  ///< of the verb's repeatable flags, in order
  std::vector<std::string> words;

  /// A flag's text, or `otherwise` where it is not given.
  std::string get(const std::string& name, const std::string& otherwise) const {
    const auto found = flags.find(name);
    return found == flags.end() ? otherwise : found->second;
  }
  /// A flag that is true or false; false where it is not given.
  bool is_true(const std::string& name) const;
  /// A flag as a number within bounds, written as read_value takes it.
  double number(const std::string& name, double otherwise, const Rule& rule, bool whole) const;
};

/// Flags of a verb: name and text of the help.
using Flags = std::vector<std::pair<std::string, std::string>>;  // name, doc

/// A word of the command line, with what its help says and what it does.
struct Verb {
  std::string name, usage, doc;
  std::string example;  ///< behind "lathe "
  Flags flags;
  bool config_keys = false;  ///< takes those as flags too
  size_t min_words = 1, max_words = 1;
  std::function<Exit(const Arguments&)> run;
  /// Flags that are true where neither true, false nor a number follows.
  std::set<std::string> switches{};
  /// Flags that may stand several times, and are in Arguments::lists.
  std::set<std::string> repeatable{};
  /// The heading and the line of `lathe --help`, which the table of verbs sets.
  std::string group{}, brief{};
};

/// All of them, in the order that help shows.
const std::vector<Verb>& verbs();
/// Adds a verb, before the command line is run. Exit::internal where its name is taken.
void add_verb(Verb verb);

/// Exit::usage for a flag that the verb with its first word has not: neither one of `known` nor,
/// where those are taken, a key of the config. `hint` ends the sentence.
void check_flags(const Arguments& arguments, const std::set<std::string>& known,
                 bool config_keys = false, const std::string& hint = "");
/// The parts of a flag's text between commas.
std::vector<std::string> comma_list(const std::string& text);
/// The flags that are keys of the config.
Overrides key_arguments(const Arguments& arguments);
/// The config that word `at` names, with the flags that are keys; sets the console's level.
LoadedConfig load_config_argument(const Arguments& arguments, size_t at = 0);
/// The run or checkpoint that the first word names; Exit::checkpoint with what it is instead.
fs::path run_argument(const Arguments& arguments);
/// Checks that a result may be written to `file`: there is no such file, it is empty, or an earlier
/// command wrote it, so that `mark` is among its first 4096 bytes. Exit::usage for any other file,
/// unless --force is true, and for what is not a regular file.
void check_output(const Arguments& arguments, const fs::path& file, std::string_view mark);
/// The flag --force, which check_output reads.
inline const Flags::value_type force_flag{"force",
                                          "replace a file that lathe did not write (false)"};
/// --load-dtype: how weights are kept; Exit::usage for what is none.
std::string load_dtype_argument(const Arguments& arguments, const std::string& otherwise);
/// Its model, loaded as the flags of with_load_flags() ask.
LoadedModel load_model_argument(const Arguments& arguments);
/// A verb's own flags and those that load_model_argument reads.
Flags with_load_flags(Flags flags);
/// The flags of verbs that write text, and what they say of a model that was loaded.
Flags with_sampling_flags(Flags flags);
/// What the flags of with_sampling_flags say. Exit::usage for values out of range.
Sampling sampling_argument(const Arguments& arguments);
/// Its tokenizer; Exit::usage or Exit::data where there is none or the model does not model text.
const Tokenizer& text_tokenizer(const Arguments& arguments, const LoadedModel& m);

}  // namespace lathe
