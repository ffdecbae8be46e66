#include "train/commands/shell.h"

#include <algorithm>
#include <cctype>

#include "core/io/text.h"
#include "train/commands/commands.h"

namespace lathe {
namespace {

/// Returns `text` with each of `characters` replaced by `with`, in which & stands for the
/// character.
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

/// Returns the first clause of a doc, which fits into a menu.
std::string first_sentence(const std::string& doc) {
  const std::string text =
      doc.substr(0, std::min({doc.find("; "), doc.find(". "), doc.find(" (")}));
  return text.substr(0, utf8_end(text, 0, 70));
}

/// Returns the flags of a command, without the keys of the config.
std::string flags_of(const Command& command, const std::string& end) {
  std::string words;
  for (const auto& [name, doc] : command.flags)
    words += (words.empty() ? "--" : " --") + name + end;
  return words;
}

std::string all_keys(const std::string& end) {
  std::string words;
  for (const Field& f : all_fields()) words += (words.empty() ? "--" : " --") + f.key + end;
  return words;
}

/// Returns the values that a key of choices may have, separated by spaces.
std::string choices_of(const Field& field) {
  std::vector<std::string> values = field.rule.choices;
  if (std::holds_alternative<bool>(field.initial)) values = {"true", "false"};
  std::string words;
  for (const std::string& value : values) words += (words.empty() ? "" : " ") + value;
  return words;
}

std::string bash() {
  std::string commands_text, cases, choices;
  for (const Command& v : commands()) {
    commands_text += v.name + " ";
    // The = at the end of a flag invites its value; the script then adds no space.
    cases += "    " + v.name + ") flags=\"" + flags_of(v, "=") + (v.config_keys ? " $keys" : "") +
             "\" ;;\n";
  }

  for (const Field& f : all_fields()) {
    if (const std::string words = choices_of(f); !words.empty())
      choices += "    --" + f.key + ") COMPREPLY=($(compgen -W \"" + words +
                 "\" -- \"$value\")); return ;;\n";
  }

  // In the script, `key` is set while a value is completed. Bash splits words at =, so the key and
  // its value are words of their own.
  return "# lathe's completion for bash: source <(lathe config completion bash)\n"
         "_lathe() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} flags key value i\n"
         "  local keys=\"" +
         all_keys("=") +
         "\"\n"
         "  local command=${COMP_WORDS[1]}\n"
         "  # bash splits words at =\n"
         "  if [[ $word == = ]]; then key=${COMP_WORDS[COMP_CWORD-1]} value=\n"
         "  elif [[ ${COMP_WORDS[COMP_CWORD-1]} == = ]]; then key=${COMP_WORDS[COMP_CWORD-2]} "
         "value=$word; fi\n"
         "  case $key in\n" +
         choices +
         "  esac\n"
         "  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W \"" +
         commands_text +
         "help --help --version\" -- \"$word\")); return; fi\n"
         "  [[ -z $key && $word == -* ]] || { COMPREPLY=($(compgen -f -- \"${value-$word}\")); "
         "compopt -o filenames; "
         "return; }\n"
         "  case $command in\n" +
         cases +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$flags --help\" -- \"$word\"))\n"
         "  [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace\n"
         "}\n"
         "complete -F _lathe lathe\n";
}

std::string zsh() {
  // A colon separates a name from its description, so those in the text are escaped. Single quotes
  // can't be, and are dropped.
  const auto quoted = [](const std::string& name, const std::string& doc) {
    return "'" + name + ":" + escaped(escaped(first_sentence(doc), "'", ""), ":", "\\&") + "'";
  };

  std::string commands_text, cases, keys, choices;
  for (const Command& v : commands()) {
    commands_text += "    " + quoted(v.name, v.summary) + "\n";
    cases += "    " + v.name + ") flags=(";
    for (const auto& [name, doc] : v.flags) cases += quoted("--" + name, doc) + " ";
    cases += std::string(v.config_keys ? "$keys" : "") + ") ;;\n";
  }

  for (const Field& f : all_fields()) {
    keys += "    " + quoted("--" + f.key, f.doc) + "\n";
    if (const std::string words = choices_of(f); !words.empty())
      choices += "    --" + f.key + ") compadd -P \"$key=\" -- " + words + "; return ;;\n";
  }

  // In the script, a word that contains = completes the choices of its key, or files.
  return "#compdef lathe\n"
         "# lathe's completion for zsh: lathe config completion zsh > ~/.zfunc/_lathe, with that "
         "folder in fpath\n"
         "_lathe() {\n"
         "  local -a commands keys flags\n"
         "  commands=(\n" +
         commands_text +
         "  )\n"
         "  keys=(\n" +
         keys +
         "  )\n"
         "  if ((CURRENT == 2)); then _describe -t commands command commands; return; fi\n"
         "  local word=${words[CURRENT]} key\n"
         "  if [[ $word == --*=* ]]; then\n"
         "    key=${word%%=*}\n"
         "    case $key in\n" +
         choices +
         "    esac\n"
         "    compset -P '*='; _files; return\n"
         "  fi\n"
         "  [[ $word == -* ]] || { _files; return; }\n"
         "  case ${words[2]} in\n" +
         cases +
         "  esac\n"
         "  _describe -t flags flag flags -S=\n"
         "}\n"
         "if [[ $funcstack[1] == _lathe ]]; then _lathe \"$@\"; else compdef _lathe lathe; fi\n";
}

std::string fish() {
  const auto quoted = [](const std::string& doc) {
    return "'" + escaped(first_sentence(doc), "'\\", "\\&") + "'";
  };

  std::string text =
      "# lathe's completion for fish: lathe config completion fish > "
      "~/.config/fish/completions/lathe.fish\n";
  std::string with_keys;
  for (const Command& v : commands()) {
    text += "complete -c lathe -n __fish_use_subcommand -f -a " + v.name + " -d " +
            quoted(v.summary) + "\n";
    for (const auto& [name, doc] : v.flags)
      text += "complete -c lathe -n '__fish_seen_subcommand_from " + v.name + "' -l " + name +
              " -r -d " + quoted(doc) + "\n";
    if (v.config_keys) with_keys += " " + v.name;
  }

  // All keys are flags of the same commands, so each has a single line for all of them.
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
  fail(Exit::usage, "lathe config completion ", shell, ": there are bash, zsh and fish");
}

std::string man_page() {
  std::string text =
      ".TH LATHE 1 \"\" \"lathe 0.1.0\" \"User Commands\"\n"
      ".SH NAME\nlathe \\- trains models from config files\n"
      ".SH SYNOPSIS\n.B lathe\n.I COMMAND ...\n"
      ".SH DESCRIPTION\nA run is started, stopped, resumed, measured and compared from the command "
      "line. Its config is "
      "a "
      "TOML file; keys of the config are flags too, which come before the environment "
      "(LATHE_TRAIN_STEPS=100), which "
      "comes "
      "before the file.\n"
      ".SH VERBS\n";

  for (const Command& v : commands()) {
    text += ".TP\n.B lathe " + troff(v.name + " " + v.usage) + "\n" + troff(v.doc) + ".";
    if (v.config_keys) text += " It takes the keys of the config as flags.";
    text += "\n";
    // .RS and .RE indent the options below their command.
    for (const auto& [name, doc] : v.flags)
      text += ".RS\n.TP\n.B " + troff("--" + name) + "\n" + troff(doc) + "\n.RE\n";
    text += ".RS\n.PP\nExample:\n.B " + troff("lathe " + v.example) + "\n.RE\n";
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
         "checkpoint, 5 diverged, 6 "
         "input or output, 8 folder in use, 9 out of memory or threads, 10 plan --fit found "
         "nothing, 75 stopped with a "
         "checkpoint: run it again to "
         "resume.\n"
         ".SH ENVIRONMENT\nLATHE_SECTION_KEY sets a key of the config; LATHE_CACHE names the "
         "folder for what is "
         "measured "
         "of the machine; OMP_NUM_THREADS is the default of train.threads; NO_COLOR turns colors "
         "off.\n";
}

std::string cli_reference() {
  // Escape the characters of Markdown that texts of options contain: the bar of a table's column,
  // the brackets of placeholders, and asterisks.
  const auto sentence = [](std::string doc) {
    doc[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(doc[0])));
    return escaped(doc, "|<*", "\\&") + (doc.ends_with('.') ? "" : ".");
  };

  std::string text =
      "# Command line\n\nThis page lists every command of `lathe` with its options. It is "
      "generated by `lathe config "
      "docs cli`;\n"
      "`lathe help COMMAND` prints the same on a terminal.\n\n"
      "    build/lathe train configs/quickstart.toml --train.steps=200\n\n"
      "Write an option as `--name=value` or `--name value`. Where a command takes the keys of the "
      "config, each\n"
      "key is an option too: see [config.md](config.md). [exit-codes.md](exit-codes.md) lists the "
      "exit codes.\n\n| "
      "command | purpose |\n|---|---|\n";
  for (const Command& v : commands())
    text += "| [`" + v.name + "`](#lathe-" + v.name + ") | " + sentence(v.summary) + " |\n";

  for (const Command& v : commands()) {
    text += "\n## lathe " + v.name + "\n\n    lathe " + v.name + " " + v.usage + "\n\n" +
            sentence(v.doc);
    if (v.config_keys) text += " The keys of the config are options of this command.";
    text += "\n\nExample:\n\n    lathe " + v.example + "\n";
    if (v.flags.empty()) continue;

    text += "\n| option | meaning (default) |\n|---|---|\n";
    for (const auto& [name, doc] : v.flags)
      text += "| `--" + name + "` | " + sentence(doc) + " |\n";
  }
  return text;
}

}  // namespace lathe
