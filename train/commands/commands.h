// Declares the commands of `lathe`. Each command is a file in this folder and a line in the table
// of commands.cc. A program that links Lathe can add commands with add_command(). cli.cc parses the
// command line and prints the help.
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

struct DocumentSource;

/// The words after the name of a command: its flags with their values, and the words that are not
/// flags.
struct Arguments {
  std::string command;
  std::map<std::string, std::string> flags;
  std::map<std::string, std::vector<std::string>>
      lists{};  ///< values of the repeatable flags by name, in the order given
  std::vector<std::string> positionals;
  std::map<std::string, std::string> origins{};  ///< where() of flags that come from a file

  /// Returns the name of a flag for an error message, with the place where the flag was given.
  std::string where(const std::string& name) const {
    const auto found = origins.find(name);
    return found == origins.end() ? "command line: --" + name : found->second;
  }
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
  std::string name;  ///< name without the dashes
  std::string doc;   ///< a sentence for the help
  /// Values that shells complete; other values may be valid as well.
  std::vector<std::string> choices{};

  /// Returns the flag as a user types it: -n or --name.
  std::string typed() const { return (name.size() == 1 ? "-" : "--") + name; }
};
/// Flags in the order in which the help lists them.
using Flags = std::vector<Flag>;

/// A command of the command line, with its help and the function that runs it.
struct Command {
  std::string name, usage;
  std::string doc;                    ///< a sentence for the help
  std::vector<std::string> examples;  ///< two examples, without "lathe "
  Flags flags;
  bool config_keys = false;  ///< whether the command also takes the keys of the config as flags
  size_t min_positionals = 1, max_positionals = 1;
  std::function<Exit(const Arguments&)> run;
  /// Flags whose value may be left out. If the next word is not "true" or "false", the value is
  /// true.
  std::set<std::string> switches{};
  /// Flags that may be given several times; their values are in Arguments::lists.
  std::set<std::string> repeatable{};
  /// Switches that also take an amount, such as 8GB.
  std::set<std::string> amount_switches{};
  /// Whether the words after the command are put into Arguments::positionals without being parsed.
  bool is_raw = false;
  /// The words that may come first, for completion in shells. Empty if a path comes first.
  std::vector<std::string> subcommands{};
  /// The command's heading and its line in `lathe --help`. The table of commands sets them.
  std::string group{}, summary{};
};

/// The name and version of the program. CMakeLists.txt and the newest release in CHANGELOG.md have
/// the same version.
constexpr const char* program_version = "lathe 0.4.0";

/// Returns all commands, in the order of the help.
const std::vector<Command>& commands();
/// Returns the command with this name. Throws Exit::usage if no command has it.
const Command& find_command(const std::string& name);
/// Parses the words after a command. Throws Exit::usage for an unknown flag, a missing value, or a
/// wrong number of positionals. Does not check the values of flags.
Arguments parse_arguments(const Command& command, const std::vector<std::string>& words);
/// Adds a command. Must be called before run_cli(). Throws Exit::internal if the name of the
/// command is taken.
void add_command(Command command);

/// Throws Exit::usage for a flag that the subcommand (the first positional) does not accept. The
/// subcommand accepts the flags in `known` and, if `config_keys` is true, the keys of the config.
/// Appends `hint` to the message.
void check_flags(const Arguments& arguments, const std::set<std::string>& known,
                 bool config_keys = false, const std::string& hint = "");
/// Splits the text of a flag at commas.
std::vector<std::string> comma_list(const std::string& text);
/// Returns the flags that are keys of the config, with their values.
Overrides key_arguments(const Arguments& arguments);
/// Throws Exit::usage if --field is given, but no file of the source is read as JSON Lines.
void check_field_is_used(const Arguments& arguments, const DocumentSource& source);
/// Loads the config file that positional `at` names, and overrides its keys by the flags that are
/// keys of the config. Also sets the log level of the console.
LoadedConfig load_config_argument(const Arguments& arguments, size_t at = 0);
/// Returns the path of the run or checkpoint that the first positional names. Throws
/// Exit::checkpoint if the path is a data folder or a file.
fs::path run_argument(const Arguments& arguments);
/// Returns the tokenizer at `path`, the value of --tokenizer: the tokenizer of a run or checkpoint,
/// or one in tokenizer files. Throws Exit::usage if a run has no BPE tokenizer.
Tokenizer tokenizer_at(const fs::path& path);
/// Checks that a command may write its result to `file`. The command may write if the file does not
/// exist, is empty, or is the result of an earlier command, which has `mark` among its first 4096
/// bytes. Otherwise throws Exit::usage, unless --force is true. Always throws for a folder or a
/// special file.
void check_output(const Arguments& arguments, const fs::path& file, std::string_view mark);
/// The flag --force, which check_output() reads.
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
/// Returns whether --weights requests the moving averages.
bool wants_ema(const Arguments& arguments);
inline const Flag device_flag{"device",
                              "Compute on cpu or cuda. Default: auto, a GPU if there is one.",
                              {"auto", "cpu", "cuda"}};
inline const Flag threads_flag{
    "threads", "Use this many CPU threads. Default: OMP_NUM_THREADS, or all cores."};
/// Returns the value of --load-dtype, the dtype in which weights are kept in memory. Returns
/// `otherwise` if the flag is not given. Throws Exit::usage for an unknown dtype.
std::string load_dtype_argument(const Arguments& arguments, const std::string& otherwise);
/// Returns the value of --double-quant. Throws Exit::usage if it is true and `dtype` is not nf4.
bool double_quant_argument(const Arguments& arguments, const std::string& dtype);
/// Loads the model that the first positional names, as the flags of with_load_flags() specify.
/// Prints the dtypes of the model to standard error.
LoadedModel load_model_argument(const Arguments& arguments);
/// Returns `flags` and the flags that load_model_argument() reads.
Flags with_load_flags(Flags flags);
/// Returns `flags` and the flags that sampling_argument() reads.
Flags with_sampling_flags(Flags flags);
/// Reads the flags that with_sampling_flags() adds. Throws Exit::usage for values out of range.
Sampling sampling_argument(const Arguments& arguments);
/// Returns the tokenizer of the model. Throws Exit::usage if the model is not a language model, and
/// Exit::data if its run has no tokenizer.
const Tokenizer& text_tokenizer(const Arguments& arguments, const LoadedModel& m);

}  // namespace lathe
