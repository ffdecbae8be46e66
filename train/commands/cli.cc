#include "train/commands/cli.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>
#include <iterator>
#include <new>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include "core/device.h"
#include "core/io/file.h"
#include "core/io/log.h"
#include "core/io/shipped.h"
#include "core/io/text.h"
#include "core/kernels/isa.h"
#include "train/commands/commands.h"
#include "train/config/run_config.h"
#include "train/loop/stop.h"

namespace lathe {
namespace {

constexpr size_t width = 100;  // columns of help

/// Returns `left` followed by `right`. `right` begins at column `indent` and is broken between
/// words.
std::string row(const std::string& left, const std::string& right, size_t indent) {
  std::string text, line = left;
  line.resize(std::max(left.empty() ? 0 : left.size() + 1, indent), ' ');
  bool begins = true;
  std::istringstream words(right);
  for (std::string word; words >> word; begins = false) {
    if (!begins && line.size() + 1 + word.size() > width) {
      text += line + "\n";
      line.assign(indent, ' ');
      begins = true;
    }
    line += (begins ? "" : " ") + word;
  }
  return text + line + "\n";
}

/// Returns the help text of a config key: its name, default value, purpose and choices.
std::string key_row(const Field& field) {
  const std::string key = "  --" + field.key + "=" + toml_text(field.initial);
  const std::string choices = field.rule.choices.empty() ? "" : " (" + rule_text(field.rule) + ")";
  return row(key, field.doc + choices, 36);
}

void print_commands() {
  std::cout << program_version << ": trains models from config files\n\nusage: lathe COMMAND ...\n";
  std::string group;
  for (const auto& v : commands()) {
    // The table keeps the commands of a group together, so print a heading if the group changes.
    if (v.group != group) std::cout << "\n" << v.group << "\n";
    group = v.group;
    std::cout << row("  " + v.name, v.summary, 13);
  }
  std::cout
      << with_shipped_files(
             "\nA first run, on a text of your own:\n"
             "  lathe prepare my.txt --out data/my --tokenizer char\n"
             "  lathe train configs/quickstart.toml --data.dir=data/my --train.out_dir=runs/my\n"
             "  lathe generate runs/my --tokens 500\n\n")
      << "`lathe help COMMAND` shows its options.\n"
         "Exit codes: 0 done, 1 internal error, 2 usage or config, 3 data, 4 no usable\n"
         "            checkpoint, 5 diverged, 6 input/output, 7 a process was lost,\n"
         "            8 folder in use, 9 out of memory or threads, 10 nothing\n"
         "            fits (`plan`), 75 stopped with a checkpoint (run it again to resume)\n";
}

void print_config_keys() {
  std::cout << "\nKeys of the config with their defaults. The config file (steps = 500 under "
               "[train]) and the\n"
               "environment (LATHE_TRAIN_STEPS=500) can also set them. `lathe config docs` "
               "describes each.\n";

  const auto show = [](const std::string& title, const std::vector<Field>& fields,
                       const std::string& prefix) {
    std::cout << "\n" << row("", title, 0);
    for (const auto& field : fields) {
      if (field.key.starts_with(prefix)) std::cout << key_row(field);
    }
  };

  // The keys of [model] depend on its kind, so each kind has its own list.
  const Schema& common = schema_of<RunConfig>();
  for (const auto& section : RunConfig::schema("gpt").sections()) {
    if (section.name != "model") {
      show("[" + section.name + "] " + section.doc, RunConfig::schema("gpt").fields(),
           section.name + ".");
      continue;
    }
    show("[model] " + section.doc, common.fields(), "model.");
    for (const ModelKind& kind : model_kinds()) {
      Schema own;
      own.add("model", kind.config.schema(), nullptr);
      show("[model] with kind = \"" + kind.name + "\", " + kind.doc, own.fields(), "model.");
    }
  }
}

void print_help(const Command* command) {
  if (command == nullptr) return print_commands();

  std::cout << row("usage: lathe " + command->name, command->usage, 4) << "\n"
            << row("", command->doc, 0) << "\nExamples:\n";
  for (const std::string& example : command->examples)
    std::cout << "  lathe " << with_shipped_files(example) << "\n";
  if (!command->flags.empty()) std::cout << "\nOptions:\n";
  for (const Flag& flag : command->flags) std::cout << row("  " + flag.typed(), flag.doc, 21);

  if (!command->config_keys) return;
  // The list is long, so only `train` prints it.
  if (std::string(command->name) == "train")
    print_config_keys();
  else
    std::cout << "\nThe keys of the config are also options: `lathe train --help` lists them.\n";
}

/// Returns the words of an option's name, which are separated by dashes, underscores and dots.
std::set<std::string> words_of_name(std::string name) {
  for (char& c : name) c = c == '-' || c == '_' || c == '.' ? ' ' : c;
  std::istringstream in(name);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Returns the options that the user may have meant by the unknown option `name`. First looks for
/// config keys with the same last part, such as optim.lr for train.lr and lr, and also for
/// learning-rate, its name in other frameworks. If there are none, returns the option with the most
/// similar name. If no name is similar, returns the options whose words all occur in `name`, such
/// as tokens for max-tokens.
std::vector<std::string> suggestions(std::string name, const std::vector<std::string>& known) {
  std::string last_part = name;
  std::replace(last_part.begin(), last_part.end(), '-', '_');
  last_part = lathe_name_of(last_part.substr(last_part.rfind('.') + 1));
  std::vector<std::string> found;
  for (const std::string& option : known) {
    if (option.ends_with("." + last_part)) found.push_back(option);
  }
  if (!found.empty()) return found;

  if (const std::string near = nearest(name, known); !near.empty()) return {near};

  const std::set<std::string> given = words_of_name(std::move(name));
  for (const std::string& option : known) {
    const std::set<std::string> own = words_of_name(option);
    if (std::includes(given.begin(), given.end(), own.begin(), own.end())) found.push_back(option);
  }
  return found;
}

/// The names of the options of a command.
struct OptionNames {
  std::vector<std::string> known;       ///< names that the parser accepts
  std::vector<std::string> to_suggest;  ///< names that may be suggested for an unknown name

  explicit OptionNames(const Command& command) {
    for (const Flag& flag : command.flags) known.push_back(flag.name);
    if (command.config_keys) {
      for (const auto& f : all_fields()) known.push_back(f.key);
    }
    to_suggest = known;
    // Accept the keys of older versions, so that load_config can report their new names.
    if (!command.config_keys) return;
    for (const auto& key : renamed_keys()) known.push_back(key);
  }
};

/// Returns the error message for a word that is not an option of a command.
std::string unknown_option(const Command& command, const OptionNames& names,
                           const std::string& word, const std::string& name) {
  std::string meant;
  for (const std::string& option : suggestions(name, names.to_suggest))
    meant += (meant.empty() ? "; did you mean --" : " or --") + option;
  return str("command line: lathe ", command.name, " has no option ", word,
             meant.empty() ? "; `lathe " + command.name + " --help` lists them" : meant + "?");
}

/// Splits each --name=value into two words. cxxopts would split it with std::regex, which fails on
/// long values and on line breaks. Throws Exit::usage for options that the command does not have;
/// the message has a line for each of them.
std::vector<std::string> split_words(const Command& command, const OptionNames& names,
                                     const std::vector<std::string>& words) {
  std::vector<std::string> split{"lathe"};
  std::string unknown;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!word.starts_with("-") || word == "-") {
      split.push_back(word);
      continue;
    }

    const auto equals = word.find('=');
    const bool has_equals = equals != std::string::npos, has_next = i + 1 < words.size();
    const std::string name =
        word.starts_with("--") ? word.substr(2, has_equals ? equals - 2 : equals) : word;
    if (std::find(names.known.begin(), names.known.end(), name) == names.known.end()) {
      unknown += (unknown.empty() ? "" : "\n") + unknown_option(command, names, word, name);
      if (!has_equals && has_next && !words[i + 1].starts_with("-")) ++i;
      continue;
    }

    split.push_back("--" + name);
    // A switch takes the next word as its value only if the word is true or false, or an amount for
    // a switch that accepts amounts.
    const auto is_value = [&](const std::string& next) {
      const bool is_amount = command.amount_switches.contains(name) && !next.empty() &&
                             std::isdigit(static_cast<unsigned char>(next[0]));
      return !command.switches.contains(name) || next == "true" || next == "false" || is_amount;
    };

    if (has_equals)
      split.push_back(word.substr(equals + 1));
    else if (has_next && is_value(words[i + 1]))
      split.emplace_back(words[++i]);
    else if (command.switches.contains(name))
      split.emplace_back("true");
    else
      fail(Exit::usage, "command line: ", word, " needs a value: ", word, "=...");
  }

  if (!unknown.empty()) fail(Exit::usage, unknown);
  return split;
}

}  // namespace

Arguments parse_arguments(const Command& command, const std::vector<std::string>& words) {
  const OptionNames names(command);
  std::vector<std::string> split = split_words(command, names, words);
  std::vector<char*> pointers;
  for (auto& word : split) pointers.push_back(word.data());

  cxxopts::Options options("lathe");
  options.allow_unrecognised_options();
  auto add = options.add_options();
  for (const auto& name : names.known) add(name, "", cxxopts::value<std::string>());

  Arguments arguments{.command = command.name, .flags = {}, .lists = {}, .positionals = {}};
  try {
    const auto result = options.parse(static_cast<int>(pointers.size()), pointers.data());
    for (const auto& given : result.arguments()) {
      if (command.repeatable.contains(given.key()))
        arguments.lists[given.key()].push_back(given.value());
    }
    for (const auto& name : names.known) {
      if (command.repeatable.contains(name)) continue;
      // A repeated flag is an error, since it is unclear which of its values was meant.
      if (result.count(name) > 1) {
        fail(Exit::usage, "command line: --", name, " is given ", result.count(name),
             " times; give it once");
      }
      if (result.count(name) == 1) arguments.flags[name] = result[name].as<std::string>();
    }
    arguments.positionals = result.unmatched();
  } catch (const cxxopts::exceptions::exception& e) {
    fail(Exit::usage, "command line: ", e.what());
  }

  const std::string usage = str("usage: lathe ", command.name, " ", command.usage);
  if (arguments.positionals.size() < command.min_positionals) fail(Exit::usage, usage);
  if (arguments.positionals.size() > command.max_positionals) {
    fail(Exit::usage, "command line: ", arguments.positionals[command.max_positionals],
         " is one argument too many; ", usage);
  }
  return arguments;
}

const Command& find_command(const std::string& name) {
  const auto command = std::find_if(commands().begin(), commands().end(),
                                    [&](const Command& v) { return v.name == name; });
  if (command != commands().end()) return *command;
  std::vector<std::string> names;
  for (const auto& v : commands()) names.emplace_back(v.name);
  const std::string near = nearest(name, names);
  fail(Exit::usage, "lathe has no command ", name,
       near.empty() ? "; `lathe --help` lists them" : "; did you mean " + near + "?");
}

namespace {

Exit dispatch(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);

  // `lathe sweep` starts its runs with the stop signals blocked. Only `train` leaves them blocked
  // until it has installed its handlers.
  if (args.empty() || args[0] != "train") unblock_stop_signals();

  const auto asks_help = [](const std::string& a) { return a == "--help" || a == "-h"; };
  if (args.empty() || asks_help(args[0])) {
    print_help(nullptr);
    return args.empty() ? Exit::usage : Exit::done;
  }

  if (args[0] == "help") {
    if (args.size() > 2)
      fail(Exit::usage, "lathe help takes one command, as in `lathe help train`");
    print_help(args.size() == 2 ? &find_command(args[1]) : nullptr);
    return Exit::done;
  }

  if (args[0] == "--version") {
    std::cout << program_version << "\n";
    return Exit::done;
  }

  const Command& command = find_command(args[0]);
  const auto separator = std::find(args.begin() + 1, args.end(), "--");
  if (std::any_of(args.begin() + 1, separator, asks_help)) {
    print_help(&command);
    return Exit::done;
  }
  // With `lathe launch -n 2 -- train --help`, the user asks for the help of train.
  if (command.is_raw && std::any_of(separator, args.end(), asks_help)) {
    const std::string& word = *(separator + 1);
    print_help(asks_help(word) ? nullptr : &find_command(word));
    return Exit::done;
  }

  const std::vector<std::string> words(args.begin() + 1, args.end());
  const Arguments arguments =
      command.is_raw
          ? Arguments{.command = command.name, .flags = {}, .lists = {}, .positionals = words}
          : parse_arguments(command, words);
  read_isa_from_environment();
  set_up_default_threads();
  return command.run(arguments);
}

/// Returns a sentence about a path that can't be reached, with a remedy.
std::string sentence(const fs::filesystem_error& e) {
  const std::string what = e.path1().empty() ? "a file or folder" : e.path1().string();
  return str("cannot reach ", what, ": ", e.code().message(),
             e.code() == std::errc::permission_denied
                 ? "; change the permissions, or give another path"
                 : "");
}

/// Runs the command of the arguments and reports its errors. Returns the exit code. Throws
/// std::bad_alloc if there isn't even memory for the report.
int run_and_report(int argc, char** argv) {
  try {
    open_standard_streams();

    // Ignore SIGXFSZ, which would kill the process. A write beyond `ulimit -f` then fails with
    // EFBIG, and the command reports this error and returns an exit code.
    std::signal(SIGXFSZ, SIG_IGN);

    const PrintableStreams streams;
    const Exit code = dispatch(argc, argv);
    std::cout.flush();
    if (lines_dropped() > 0) return static_cast<int>(code);  // the log has reported the lost lines
    if (!std::cout || std::fflush(stdout) != 0) fail(Exit::io, "standard output can't be written");
    return static_cast<int>(code);
  } catch (const Error& e) {
    // An empty message means that another process has printed the error.
    if (*e.what() != '\0') log(Level::error, e.what());
    return static_cast<int>(e.code());
  } catch (const c10::Error& e) {
    log(Level::error, std::string("internal: ") + e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    log(Level::error, "out of memory; make batch_size, block_size or the model smaller");
    return static_cast<int>(Exit::memory);
  } catch (const fs::filesystem_error& e) {
    log(Level::error, sentence(e));
    return static_cast<int>(Exit::io);
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::resource_unavailable_try_again) {
      log(Level::error,
          str("cannot start another thread: ", e.code().message(),
              "; raise the limit of processes and threads (ulimit -u, or the container's)"));
      return static_cast<int>(Exit::memory);
    }
    log(Level::error, std::string("internal: ") + e.what());
  } catch (const std::exception& e) {
    log(Level::error, std::string("internal: ") + e.what());
  }
  return static_cast<int>(Exit::internal);
}

}  // namespace

int run_cli(int argc, char** argv) {
  try {
    return run_and_report(argc, argv);
  } catch (const std::bad_alloc&) {
    constexpr std::string_view message = "error: out of memory\n";
    (void)!::write(STDERR_FILENO, message.data(), message.size());
    return static_cast<int>(Exit::memory);
  }
}

}  // namespace lathe
