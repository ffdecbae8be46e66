// The commands of `lathe`. Each is a file in this folder and has a line in the table of
// `commands.cc`. A program that links Lathe can add its own commands by add_command(). Parsing and
// help are in cli.cc.
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

/// The words after a command: flags with their values, and the words that are not flags.
struct Arguments {
  std::string command;
  std::map<std::string, std::string> flags;
  std::map<std::string, std::vector<std::string>>
      lists{};  ///< values of the command's repeatable flags, in order
  std::vector<std::string> positionals;

  /// Returns a flag's text, or `otherwise` if the flag is not given.
  std::string get(const std::string& name, const std::string& otherwise) const {
    const auto found = flags.find(name);
    return found == flags.end() ? otherwise : found->second;
  }
  /// Returns a flag's text, or `otherwise` if the flag is not given. Throws Exit::usage if the text
  /// is not one of `allowed`.
  std::string choice(const std::string& name, const std::string& otherwise,
                     const std::vector<std::string>& allowed) const;
  /// Returns the value of a flag that is true or false; false if the flag is not given. Throws
  /// Exit::usage for any other value.
  bool is_true(const std::string& name) const;
  /// Returns a flag's value as a number, or `otherwise` if the flag is not given. Throws
  /// Exit::usage if the value breaks `rule`, or if it is not an integer and `whole` is true.
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

/// A command of the command line, with its help and the function that runs it.
struct Command {
  std::string name, usage;
  std::string doc;                    ///< one sentence
  std::vector<std::string> examples;  ///< two, without "lathe "
  Flags flags;
  bool config_keys = false;  ///< whether it takes the keys of the config as flags, too
  size_t min_positionals = 1, max_positionals = 1;
  std::function<Exit(const Arguments&)> run;
  /// Flags whose value may be left out: they are true unless true or false follows.
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
/// Returns the command with this name. Throws Exit::usage if there is none.
const Command& find_command(const std::string& name);
/// Parses the words after a command. Throws Exit::usage for an unknown flag, a missing value, or a
/// wrong number of positionals. Does not check the values of flags.
Arguments parse_arguments(const Command& command, const std::vector<std::string>& words);
/// Adds a command; call it before run_cli. Throws Exit::internal if its name is taken.
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
/// Returns the path of the run or checkpoint that the first positional names. Throws
/// Exit::checkpoint if the path is a data folder or a file.
fs::path run_argument(const Arguments& arguments);
/// Returns the BPE tokenizer of a run or checkpoint, or of the tokenizer files at `path`, which is
/// the value of --tokenizer. Throws Exit::usage if a run has no BPE tokenizer.
Tokenizer tokenizer_at(const fs::path& path);
/// Checks that a result may be written to `file`: there is no such file, it is empty, or an earlier
/// command wrote it, so that `mark` is among its first 4096 bytes. Throws Exit::usage for any other
/// file, unless --force is true, and always for a folder or a special file.
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
/// Returns --load-dtype, the dtype in which weights are kept, or `otherwise` if it is not given.
/// Throws Exit::usage for an unknown dtype.
std::string load_dtype_argument(const Arguments& arguments, const std::string& otherwise);
/// Returns --double-quant. Throws Exit::usage if it is true and `dtype` is not nf4.
bool double_quant_argument(const Arguments& arguments, const std::string& dtype);
/// Loads the model that the first positional names, with the options of with_load_flags(). Prints
/// its dtypes to standard error.
LoadedModel load_model_argument(const Arguments& arguments);
/// Returns a command's own flags and those that load_model_argument reads.
Flags with_load_flags(Flags flags);
/// Returns a command's own flags and those that sampling_argument reads.
Flags with_sampling_flags(Flags flags);
/// Reads the flags of with_sampling_flags. Throws Exit::usage for values out of range.
Sampling sampling_argument(const Arguments& arguments);
/// Returns the model's tokenizer. Throws Exit::usage if the model does not model text, and
/// Exit::data if the run has no tokenizer.
const Tokenizer& text_tokenizer(const Arguments& arguments, const LoadedModel& m);

}  // namespace lathe
