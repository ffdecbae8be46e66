#include "train/commands/shell.h"

#include <algorithm>

#include "core/io/text.h"
#include "train/commands/commands.h"

namespace lathe {
namespace {

/// Returns `text` with each of `characters` replaced by `with`. In `with`, & stands for the
/// replaced character.
std::string escaped(const std::string& text, const std::string& characters,
                    const std::string& with) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) == std::string::npos) {
      out += c;
      continue;
    }
    for (const char w : with) out += w == '&' ? c : w;
  }
  return out;
}

/// Returns the first clause of a sentence of the help, which is short enough for a menu.
std::string first_clause(const std::string& doc) {
  std::string text = doc.substr(0, find_outside_parentheses(doc, {"; ", ". ", ", ", " ("}));
  if (text.ends_with('.')) text.pop_back();
  return text.substr(0, utf8_end(text, 0, 70));
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// Returns the flags of a command, each followed by `end`. Leaves out the keys of the config.
std::string flags_of(const Command& command, const std::string& end) {
  std::string words;
  for (const Flag& flag : command.flags) words += (words.empty() ? "" : " ") + flag.typed() + end;
  return words;
}

std::string all_keys(const std::string& end) {
  std::string words;
  for (const Field& f : all_fields()) words += (words.empty() ? "--" : " --") + f.key + end;
  return words;
}

/// Returns the values that a key may have, separated by spaces, or an empty string if the key has
/// no list of choices.
std::string choices_of(const Field& field) {
  if (std::holds_alternative<bool>(field.initial)) return "true false";
  return joined(field.rule.choices);
}

/// Returns whether a positional of the command is a run. RUN as the value of --out does not count.
bool takes_run(const Command& command) {
  return command.usage.starts_with("RUN") || command.usage.starts_with("PATH") ||
         command.usage.find("|RUN") != std::string::npos;
}

/// Returns the words that may follow a subcommand, separated by spaces.
std::string words_after(const std::string& command, const std::string& subcommand) {
  if (command == "config" && subcommand == "completion") return "bash zsh fish";
  return command == "config" && subcommand == "docs" ? "cli" : "";
}

std::string bash() {
  std::string commands_text, flags, values, subcommands, takers;
  for (const Command& v : commands()) {
    commands_text += v.name + " ";
    // Complete a flag together with =, so that its value can be typed next. The script then adds no
    // space.
    flags += "    " + v.name + ") flags=\"" + flags_of(v, "=") + (v.config_keys ? " $keys" : "") +
             "\" ;;\n";
    for (const Flag& flag : v.flags) {
      if (!flag.choices.empty())
        values += "    '" + v.name + " " + flag.typed() + "') values=\"" + joined(flag.choices) +
                  "\" ;;\n";
    }
    if (!v.subcommands.empty())
      subcommands += "    '" + v.name + "') values=\"" + joined(v.subcommands) + "\" ;;\n";
    for (const std::string& word : v.subcommands) {
      if (const std::string words = words_after(v.name, word); !words.empty())
        subcommands += "    '" + v.name + " " + word + "') values=\"" + words + "\" ;;\n";
    }
    if (takes_run(v)) takers += (takers.empty() ? "" : "|") + v.name;
  }

  for (const Field& f : all_fields()) {
    if (const std::string words = choices_of(f); !words.empty())
      values += "    *' --" + f.key + "') values=\"" + words + "\" ;;\n";
  }

  // While a value is completed, `key` is set in the script. Bash splits words at =, so the key and
  // its value are separate words.
  return "# lathe's completion for bash: source <(lathe config completion bash)\n"
         "_lathe() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  local command=${COMP_WORDS[1]} flags key value values folder\n"
         "  local keys=\"" +
         all_keys("=") +
         "\"\n"
         "  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W \"" +
         commands_text +
         "help --help --version\" -- \"$word\")); return; fi\n"
         "  # bash splits words at =\n"
         "  if [[ $word == = ]]; then key=$previous value=\n"
         "  elif [[ $previous == = ]]; then key=${COMP_WORDS[COMP_CWORD-2]} value=$word\n"
         "  elif [[ $previous == --* && $word != -* ]]; then key=$previous value=$word; fi\n"
         "  if [[ -n $key ]]; then\n"
         "    case \"$command $key\" in\n" +
         values +
         "    esac\n"
         "    if [[ -n $values ]]; then COMPREPLY=($(compgen -W \"$values\" -- \"$value\")); "
         "return; fi\n"
         "  elif [[ $word == -* ]]; then\n"
         "    case $command in\n" +
         flags +
         "    esac\n"
         "    COMPREPLY=($(compgen -W \"$flags --help\" -- \"$word\"))\n"
         "    [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace\n"
         "    return\n"
         "  fi\n"
         "  case \"${COMP_WORDS[*]:1:COMP_CWORD-1}\" in\n" +
         subcommands +
         "  esac\n"
         "  if [[ -n $values ]]; then COMPREPLY=($(compgen -W \"$values\" -- \"$word\")); return; "
         "fi\n"
         "  COMPREPLY=($(compgen -f -- \"${value-$word}\"))\n"
         "  compopt -o filenames\n"
         "  case $command in\n"
         "    " +
         takers +
         ")\n"
         "      # Runs are folders with a config.\n"
         "      for folder in $(compgen -G 'runs/*/config.toml'); do\n"
         "        folder=${folder%/config.toml}\n"
         "        [[ -n $key || $folder != \"$word\"* || \" ${COMPREPLY[*]} \" == *\" $folder \"* "
         "]] ||\n"
         "          COMPREPLY+=(\"$folder\")\n"
         "      done ;;\n"
         "  esac\n"
         "}\n"
         "complete -F _lathe lathe\n";
}

std::string zsh() {
  // A colon separates a name from its description, so escape the colons in the text. Single quotes
  // can't be escaped, so drop them.
  const auto quoted = [](const std::string& name, const std::string& doc) {
    return "'" + name + ":" + escaped(escaped(first_clause(doc), "'", ""), ":", "\\&") + "'";
  };

  std::string commands_text, flags, keys, values, subcommands, takers;
  for (const Command& v : commands()) {
    commands_text += "    " + quoted(v.name, v.summary) + "\n";
    flags += "    " + v.name + ") flags=(";
    for (const Flag& flag : v.flags) {
      flags += quoted(flag.typed(), flag.doc) + " ";
      if (!flag.choices.empty())
        values += "      '" + v.name + " " + flag.typed() + "') compadd -- " +
                  joined(flag.choices) + "; return ;;\n";
    }
    flags += std::string(v.config_keys ? "$keys" : "") + ") ;;\n";
    if (!v.subcommands.empty())
      subcommands += "    '" + v.name + "') compadd -- " + joined(v.subcommands) + "; return ;;\n";
    for (const std::string& word : v.subcommands) {
      if (const std::string words = words_after(v.name, word); !words.empty())
        subcommands += "    '" + v.name + " " + word + "') compadd -- " + words + "; return ;;\n";
    }
    if (takes_run(v)) takers += (takers.empty() ? "" : "|") + v.name;
  }

  for (const Field& f : all_fields()) {
    keys += "    " + quoted("--" + f.key, f.doc) + "\n";
    if (const std::string words = choices_of(f); !words.empty())
      values += "      *' --" + f.key + "') compadd -- " + words + "; return ;;\n";
  }

  // For a word that contains =, the script completes the choices of its key. If the key has no
  // choices, it completes files.
  return "#compdef lathe\n"
         "# lathe's completion for zsh: lathe config completion zsh > ~/.zfunc/_lathe, with that "
         "folder in fpath\n"
         "_lathe() {\n"
         "  local -a commands keys flags found\n"
         "  commands=(\n" +
         commands_text +
         "  )\n"
         "  keys=(\n" +
         keys +
         "  )\n"
         "  if ((CURRENT == 2)); then _describe -t commands command commands; return; fi\n"
         "  local word=${words[CURRENT]} key\n"
         "  if [[ $word == --*=* ]]; then key=${word%%=*}; compset -P '*='\n"
         "  elif [[ ${words[CURRENT-1]} == --* && ${words[CURRENT-1]} != *=* && $word != -* ]]; "
         "then key=${words[CURRENT-1]}; fi\n"
         "  if [[ -n $key ]]; then\n"
         "    case \"${words[2]} $key\" in\n" +
         values +
         "    esac\n"
         "    _files; return\n"
         "  fi\n"
         "  if [[ $word != -* ]]; then\n"
         "    case \"${words[2,CURRENT-1]}\" in\n" +
         subcommands +
         "    esac\n"
         "    case ${words[2]} in\n"
         "    # Runs are folders with a config.\n"
         "    " +
         takers +
         ") found=(runs/*/config.toml(N:h)); compadd -f -a found ;;\n"
         "    esac\n"
         "    _files; return\n"
         "  fi\n"
         "  case ${words[2]} in\n" +
         flags +
         "  esac\n"
         "  _describe -t flags flag flags -S=\n"
         "}\n"
         "if [[ $funcstack[1] == _lathe ]]; then _lathe \"$@\"; else compdef _lathe lathe; fi\n";
}

std::string fish() {
  const auto quoted = [](const std::string& doc) {
    return "'" + escaped(first_clause(doc), "'\\", "\\&") + "'";
  };

  std::string text =
      "# lathe's completion for fish: lathe config completion fish > "
      "~/.config/fish/completions/lathe.fish\n";
  std::string with_keys;
  for (const Command& v : commands()) {
    text += "complete -c lathe -n __fish_use_subcommand -f -a " + v.name + " -d " +
            quoted(v.summary) + "\n";
    const std::string after = "complete -c lathe -n '__fish_seen_subcommand_from " + v.name;
    if (!v.subcommands.empty()) {
      const std::string words = joined(v.subcommands);
      text +=
          after + "; and not __fish_seen_subcommand_from " + words + "' -f -a '" + words + "'\n";
    }
    for (const std::string& word : v.subcommands) {
      if (const std::string words = words_after(v.name, word); !words.empty())
        text += after + "; and __fish_seen_subcommand_from " + word + "' -f -a '" + words + "'\n";
    }
    // Runs are folders with a config.
    if (takes_run(v)) text += after + "' -a '(path dirname runs/*/config.toml)'\n";
    for (const Flag& flag : v.flags) {
      const std::string choices =
          flag.choices.empty() ? "" : " -f -a '" + joined(flag.choices) + "'";
      text += after + (flag.name.size() == 1 ? "' -s " : "' -l ") + flag.name +
              (v.switches.contains(flag.name) ? "" : " -r") + choices + " -d " + quoted(flag.doc) +
              "\n";
    }
    if (v.config_keys) with_keys += " " + v.name;
  }

  // All these commands take all keys, so one line per key is enough for all of them.
  for (const Field& f : all_fields()) {
    const std::string choices = choices_of(f);
    text += "complete -c lathe -n '__fish_seen_subcommand_from" + with_keys + "' -l " + f.key +
            " -r" + (choices.empty() ? "" : " -f -a '" + choices + "'") + " -d " + quoted(f.doc) +
            "\n";
  }

  return text;
}

/// Escapes text for troff: backslashes, hyphens, and a first character that would begin a request.
std::string troff(const std::string& text) {
  std::string out = escaped(escaped(text, "\\", "\\e"), "-", "\\&");
  if (out.starts_with('.') || out.starts_with('\'')) out.insert(0, "\\&");
  return out;
}

}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return bash();
  if (shell == "zsh") return zsh();
  if (shell == "fish") return fish();
  fail(Exit::usage, "lathe config completion ", shell, ": the shell must be bash, zsh or fish");
}

std::string man_page() {
  std::string text =
      str(".TH LATHE 1 \"\" \"", program_version, "\" \"User Commands\"\n") +
      ".SH NAME\nlathe \\- trains models from config files\n"
      ".SH SYNOPSIS\n.B lathe\n.I COMMAND ...\n"
      ".SH DESCRIPTION\nThe commands start, resume, measure and compare runs. The config of "
      "a run is a TOML file. Its keys are also options of the command line. The command line "
      "overrides the "
      "environment (LATHE_TRAIN_STEPS=100), which overrides the file.\n"
      ".SH COMMANDS\n";

  for (const Command& v : commands()) {
    text += ".TP\n.B " + troff("lathe " + v.name + " " + v.usage) + "\n" + troff(v.doc);
    if (v.config_keys) text += " The keys of the config are options of this command.";
    text += "\n.RS\n.PP\nExamples:\n.nf\n";
    for (const std::string& example : v.examples) text += ".B " + troff("lathe " + example) + "\n";
    text += ".fi\n.RE\n";
    // .RS and .RE indent the options below their command.
    for (const Flag& flag : v.flags)
      text += ".RS\n.TP\n.B " + troff(flag.typed()) + "\n" + troff(flag.doc) + "\n.RE\n";
  }

  text += ".SH KEYS OF THE CONFIG\n";
  // Keys are listed once, not for each command that takes them.
  for (const Field& f : all_fields()) {
    const std::string allowed = rule_text(f.rule);
    text += ".TP\n.B " + troff("--" + f.key + "=" + toml_text(f.initial)) + "\n" +
            troff(f.doc + (allowed.empty() ? "" : " (" + allowed + ")")) + "\n";
  }

  return text +
         ".SH EXIT STATUS\n0 done, 1 internal error, 2 usage or config, 3 data, 4 no usable "
         "checkpoint, 5 diverged, 6 input or output, 7 a process was lost, 8 folder in use, 9 out "
         "of memory or threads, 10 nothing fits (plan), 75 stopped with a checkpoint (run it "
         "again to resume).\n"
         ".SH ENVIRONMENT\nLATHE_SECTION_KEY sets a key of the config. LATHE_CACHE names the "
         "folder for measurements of the machine. OMP_NUM_THREADS is the default of "
         "train.threads. NO_COLOR turns colors off.\n"
         ".SH FILES\nThe folder share/lathe/configs of the installation has the configs that the "
         "examples use. The folder share/doc/lathe has the documentation.\n";
}

std::string cli_reference() {
  // Escape the characters of Markdown that texts of options contain: the bar of a table's column,
  // the brackets of placeholders, and asterisks.
  const auto markdown = [](const std::string& doc) { return escaped(doc, "|<*", "\\&"); };

  std::string text =
      "# Command line\n\nThis page lists every command of `lathe` with its options. It is "
      "generated by `lathe config docs cli`;\n"
      "`lathe help COMMAND` prints the same on a terminal.\n\n"
      "    build/lathe train configs/quickstart.toml --train.steps=200\n\n"
      "Write an option as `--name=value` or `--name value`. Where a command takes the keys of the "
      "config, each\n"
      "key is also an option: see [config.md](config.md). [exit-codes.md](exit-codes.md) lists the "
      "exit codes.\n\n| "
      "command | purpose |\n|---|---|\n";
  for (const Command& v : commands())
    text += "| [`" + v.name + "`](#lathe-" + v.name + ") | " + markdown(v.summary) + " |\n";

  for (const Command& v : commands()) {
    text += "\n## lathe " + v.name + "\n\n    lathe " + v.name + " " + v.usage + "\n\n" +
            markdown(v.doc);
    if (v.config_keys) text += " The keys of the config are options of this command.";
    text += "\n\nExamples:\n\n";
    for (const std::string& example : v.examples) text += "    lathe " + example + "\n";
    if (v.flags.empty()) continue;

    text += "\n| option | meaning |\n|---|---|\n";
    for (const Flag& flag : v.flags)
      text += "| `" + flag.typed() + "` | " + markdown(flag.doc) + " |\n";
  }
  return text;
}

}  // namespace lathe
