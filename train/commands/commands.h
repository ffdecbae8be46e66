// The commands of `lathe`. Each is a file in this folder and a line in the table of `commands.cc`
// (or, in a program of your own, a call of add_command). Parsing and help are in cli.cc.
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
#include "train/session/load.h"
#include "train/tasks/generate.h"

namespace lathe {

/// The words after a command: flags by name, each at most once unless the command allows more, and
/// the words that are not flags.
struct Arguments {
  std::string command;
  std::map<std::string, std::string> flags;
  std::map<std::string, std::vector<std::string>>
      lists{};  ///< of the command's repeatable flags, in order
  std::vector<std::string> positionals;

  /// Returns a flag's text, or `otherwise` where it is not given.
  std::string get(const std::string& name, const std::string& otherwise) const {
    const auto found = flags.find(name);
    return found == flags.end() ? otherwise : found->second;
  }
  /// Returns a flag's text, or `otherwise` where it is not given. Throws Exit::usage if it is none
  /// of `allowed`.
  std::string choice(const std::string& name, const std::string& otherwise,
                     const std::vector<std::string>& allowed) const;
  /// Returns a flag that is true or false; false where it is not given.
  bool is_true(const std::string& name) const;
  /// Returns a flag's value as a number, or `otherwise` where it is not given. Throws Exit::usage
  /// if it breaks `rule`, or if it is not an integer and `whole` is true.
  double number(const std::string& name, double otherwise, const Rule& rule, bool whole) const;
};

/// A flag of a command.
struct Flag {
  std::string name;                    ///< without the dashes
  std::string doc;                     ///< a sentence of the help
  std::vector<std::string> choices{};  ///< values that shells complete; others may be valid too

  /// Returns the flag as it is typed: -n, --name.
  std::string typed() const { return (name.size() == 1 ? "-" : "--") + name; }
};
/// Flags in the order of the help.
using Flags = std::vector<Flag>;

/// A command of the command line, with its help and what it does.
struct Command {
  std::string name, usage;
  std::string doc;                    ///< one sentence
  std::vector<std::string> examples;  ///< two, without "lathe "
  Flags flags;
  bool config_keys = false;  ///< takes the keys of the config as flags too
  size_t min_positionals = 1, max_positionals = 1;
  std::function<Exit(const Arguments&)> run;
  /// Flags that are true where neither true nor false follows.
  std::set<std::string> switches{};
  /// Flags that may be given several times; their values are in Arguments::lists.
  std::set<std::string> repeatable{};
  /// Switches that also take an amount, such as 8GB.
  std::set<std::string> amount_switches{};
  /// If true, the words after the command are not parsed, and all are in Arguments::positionals.
  bool is_raw = false;
  /// The words that may come first, for completion in shells; empty if a path comes first.
  std::vector<std::string> subcommands{};
  /// The heading and the line of `lathe --help`, which the table of commands sets.
  std::string group{}, summary{};
};

/// The name and version of the program; the version is that of CMakeLists.txt, and of the newest
/// release in CHANGELOG.md.
constexpr const char* program_version = "lathe 0.4.0";

/// Returns all commands, in the order of the help.
const std::vector<Command>& commands();
/// Returns the command of that name. Throws Exit::usage where there is none.
const Command& find_command(const std::string& name);
/// Parses what follows a command. The values of flags are checked where they are used.
Arguments parse_arguments(const Command& command, const std::vector<std::string>& words);
/// Adds a command; call it before run_cli. Throws Exit::internal where its name is taken.
void add_command(Command command);

/// Throws Exit::usage for a flag that the subcommand (the first positional) does not have. The
/// subcommand has the flags in `known` and, with `config_keys`, the keys of the config. `hint` is
/// appended to the message.
void check_flags(const Arguments& arguments, const std::set<std::string>& known,
                 bool config_keys = false, const std::string& hint = "");
/// Returns the parts of a flag's text between commas.
std::vector<std::string> comma_list(const std::string& text);
/// Returns the flags that are keys of the config.
Overrides key_arguments(const Arguments& arguments);
/// Loads the config that positional `at` names, with the flags that are keys of the config. Also
/// sets the log level of the console.
LoadedConfig load_config_argument(const Arguments& arguments, size_t at = 0);
/// Returns the run or checkpoint that the first positional names. Throws Exit::checkpoint if it is
/// a data folder or a file, which the error states.
fs::path run_argument(const Arguments& arguments);
/// Returns the BPE tokenizer of a run or checkpoint, or of the tokenizer files at `path`, which
/// --tokenizer names. Throws Exit::usage where a run has no BPE tokenizer.
Tokenizer tokenizer_at(const fs::path& path);
/// Checks that a result may be written to `file`: there is no such file, it is empty, or an earlier
/// command wrote it, so that `mark` is among its first 4096 bytes. Throws Exit::usage for any other
/// file, unless --force is true, and for what is not a regular file.
void check_output(const Arguments& arguments, const fs::path& file, std::string_view mark);
/// The flag --force, which check_output reads.
inline const Flag force_flag{"force", "Replace a file that lathe did not write."};
/// Flags that several commands have.
inline const Flag checkpoint_flag{
    "checkpoint",
    "Use this checkpoint of the run: newest, best, or a name such as step-00001000. Default: "
    "newest.",
    {"newest", "best"}};
inline const Flag weights_flag{
    "weights",
    "Use the weights (model) or their moving average (ema), which optim.ema_decay keeps. Default: "
    "model.",
    {"model", "ema"}};
/// Returns whether weights_flag asks for the moving averages.
bool wants_ema(const Arguments& arguments);
inline const Flag device_flag{"device",
                              "Compute on cpu or cuda. Default: auto, a GPU if there is one.",
                              {"auto", "cpu", "cuda"}};
inline const Flag threads_flag{
    "threads", "Use this many CPU threads. Default: OMP_NUM_THREADS, or all cores."};
/// Returns --load-dtype, how weights are kept. Throws Exit::usage for an unknown dtype.
std::string load_dtype_argument(const Arguments& arguments, const std::string& otherwise);
/// Returns --double-quant. Throws Exit::usage where it is given with another dtype than nf4.
bool double_quant_argument(const Arguments& arguments, const std::string& dtype);
/// Loads the model of the first word, as the flags of with_load_flags() ask.
LoadedModel load_model_argument(const Arguments& arguments);
/// Returns a command's own flags with those that load_model_argument reads.
Flags with_load_flags(Flags flags);
/// Returns a command's own flags with those that sampling_argument reads.
Flags with_sampling_flags(Flags flags);
/// Reads the flags of with_sampling_flags. Throws Exit::usage for values out of range.
Sampling sampling_argument(const Arguments& arguments);
/// Returns the model's tokenizer. Throws Exit::usage where the model does not model text, and
/// Exit::data where the run has no tokenizer.
const Tokenizer& text_tokenizer(const Arguments& arguments, const LoadedModel& m);

}  // namespace lathe
