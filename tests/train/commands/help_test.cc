// Tests the help of every command, its examples and completions, and suggestions for unknown words.
#include <algorithm>
#include <cctype>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/commands/commands.h"
#include "train/commands/shell.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Strings = std::vector<std::string>;

/// Splits a command line at spaces, and keeps text in double quotes together, as a shell does.
Strings shell_words(const std::string& line) {
  Strings words;
  bool is_quoted = false, in_word = false;
  for (const char c : line) {
    if (c == ' ' && !is_quoted) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == '"')
      is_quoted = !is_quoted;
    else
      words.back() += c;
  }
  return words;
}

/// Returns why a text of the help is not a correct sentence, or "" if it is one.
std::string fault_of_sentence(const std::string& text) {
  if (text.empty() || std::isupper(static_cast<unsigned char>(text[0])) == 0)
    return "it does not begin with a capital";
  if (!text.ends_with('.')) return "it does not end with a period";
  if (text.find("  ") != std::string::npos) return "it has two spaces in a row";
  return "";
}

/// Returns why an example of a command is wrong, or "" if it is correct.
std::string fault_of_example(const Command& command, const std::string& example) {
  Strings words = shell_words(example);
  if (words.empty() || words[0] != command.name) return "it does not begin with the command";
  words.erase(words.begin());
  for (const std::string& word : words) {
    if (word.starts_with("configs/") && !fs::exists(source_folder() / word))
      return "there is no " + word;
  }

  // `launch` does not parse the words after --, which are another command.
  const auto inner = std::find(words.begin(), words.end(), "--");
  if (inner != words.end()) {
    std::string rest;
    for (auto word = inner + 1; word != words.end(); ++word)
      rest += (rest.empty() ? "" : " ") + *word;
    return fault_of_example(find_command(*(inner + 1)), rest);
  }
  try {
    const Arguments arguments = parse_arguments(command, words);
    if (!command.subcommands.empty() &&
        std::find(command.subcommands.begin(), command.subcommands.end(),
                  arguments.positionals[0]) == command.subcommands.end())
      return "there is no subcommand " + arguments.positionals[0];
    // The config keys must exist.
    for (const auto& [key, text] : key_arguments(arguments)) {
      const auto& fields = all_fields();
      const auto field =
          std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.key == key; });
      if (field == fields.end()) return "there is no key " + key;
      // A list of values belongs to a sweep, and is not checked here.
      const bool is_list =
          text.find(',') != std::string::npos || text.find("..") != std::string::npos;
      if (!is_list && read_value(text, field->initial).index() != field->initial.index())
        return key + " can't be " + text;
    }
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST_CASE("texts of commands and options are sentences", "[help]") {
  for (const Command& command : commands()) {
    INFO("lathe " << command.name);
    CHECK(fault_of_sentence(command.doc) == "");
    CHECK(fault_of_sentence(command.summary) == "");
    CHECK(command.summary.size() <= 66);
    CHECK(command.doc.find(". ") == std::string::npos);  // one sentence
    for (const Flag& flag : command.flags) {
      INFO("--" << flag.name << ": " << flag.doc);
      CHECK(fault_of_sentence(flag.doc) == "");
      // The values that completion offers for an option are in the option's sentence.
      for (const std::string& choice : flag.choices)
        CHECK_THAT(flag.doc, ContainsSubstring(choice));
    }
    for (const std::string& word : command.subcommands)
      CHECK_THAT(command.usage, ContainsSubstring(word));
  }

  CHECK(fault_of_sentence("folder for the data.") != "");
  CHECK(fault_of_sentence("Write the data to this folder") != "");
}

TEST_CASE("each command has two examples that parse", "[help]") {
  for (const Command& command : commands()) {
    INFO("lathe " << command.name);
    CHECK(command.examples.size() == 2);
    CHECK(std::set<std::string>(command.examples.begin(), command.examples.end()).size() == 2);
    for (const std::string& example : command.examples) {
      INFO(example);
      CHECK(fault_of_example(command, example) == "");
    }
  }

  const Command& train = find_command("train");
  CHECK(fault_of_example(train, "eval runs/a") != "");
  CHECK_THAT(fault_of_example(train, "train configs/quickstart.toml --train.stepz=1"),
             ContainsSubstring("--train.stepz"));
  CHECK_THAT(fault_of_example(train, "train configs/quick.toml"), ContainsSubstring("configs/q"));
  CHECK_THAT(fault_of_example(find_command("launch"), "launch -n 2 -- train a.toml --eta=1"),
             ContainsSubstring("--eta"));
  CHECK(fault_of_example(find_command("find"), "find rate a.toml") != "");
}

TEST_CASE("the help, the man page and the reference show examples before options", "[help]") {
  const TempFolder f;
  for (const std::string name : {"prepare", "generate", "watch"}) {
    const std::string help = lathe_in(f, {name, "--help"}).out;
    INFO(help);
    const Command& command = find_command(name);
    const size_t usage = help.find("usage: lathe " + name), examples = help.find("\nExamples:\n"),
                 options = help.find("\nOptions:\n");
    REQUIRE(options != std::string::npos);
    CHECK(usage < examples);
    CHECK(examples < options);
    for (const std::string& example : command.examples) {
      const size_t at = help.find("\n  lathe " + example + "\n");
      CHECK((at > examples && at < options));
    }
  }

  const std::string man = man_page(), reference = cli_reference();
  for (const std::string& page : {man, reference}) {
    size_t at = 0;
    for (const Command& command : commands()) {
      const bool is_man = page == man;
      at = page.find((is_man ? ".B lathe " : "## lathe ") + command.name, at);
      INFO(command.name);
      REQUIRE(at != std::string::npos);
      const size_t examples = page.find("Examples:", at);
      const size_t option = page.find(is_man ? ".B \\-\\-" : "| option", at);
      CHECK(examples != std::string::npos);
      if (!command.flags.empty()) CHECK(examples < option);
    }
  }
}

TEST_CASE("errors for unknown options and commands suggest the right one", "[help]") {
  struct Case {
    std::string command, given, suggestion;  // "": no suggestion
  };
  const std::vector<Case> cases{
      {"train", "--lr", "--optim.lr"},
      {"train", "--lr=1e-3", "--optim.lr"},
      {"train", "--batch-size", "--train.batch_size"},
      {"train", "--batch_size=4", "--train.batch_size"},
      {"train", "--steps=5", "--train.steps"},
      {"train", "--dropout=0.1", "--model.dropout"},
      {"train", "--train.stesp=5", "--train.steps"},
      {"train", "--optim.learning_rate=1", "--optim.lr"},
      {"train", "--learning-rate=1", "--optim.lr"},
      {"train", "--train.lr=1", "--optim.lr"},
      {"train", "--epochs=3", "--train.steps"},
      {"train", "--train.lrr=1", ""},
      {"generate", "--max-tokens=5", "--tokens"},
      {"generate", "--max_new_tokens", "--tokens"},
      {"generate", "--topk", "--top-k"},
      {"generate", "--promt", "--prompt"},
      {"eval", "--lr", ""},
      {"eval", "--batch", "--batches"},
      {"prepare", "--xy", ""},
      {"train", "--" + std::string(5000, 'x'), ""},
  };
  for (const Case& c : cases) {
    const std::string name = c.given.substr(0, c.given.find('='));
    INFO(c.command << " " << name.substr(0, 40));
    std::string text;
    try {
      parse_arguments(find_command(c.command), {"word", c.given, "5"});
    } catch (const Error& e) {
      CHECK(e.code() == Exit::usage);
      text = e.what();
    }
    CHECK_THAT(text, ContainsSubstring(name));
    const size_t at = text.find("did you mean ");
    if (c.suggestion.empty()) {
      CHECK(at == std::string::npos);
    } else {
      REQUIRE(at != std::string::npos);
      const size_t end = text.find_first_of("? ", at + 13);
      CHECK(text.substr(at + 13, end - at - 13) == c.suggestion);
    }
  }

  // All unknown options are named, one per line.
  const std::string both = error_of([] {
    parse_arguments(find_command("train"),
                    {"a.toml", "--steps", "5", "--train.seed=1", "--model.n_hed=3"});
  });
  CHECK(std::count(both.begin(), both.end(), '\n') == 1);
  CHECK_THAT(both, ContainsSubstring(" --steps;") && ContainsSubstring(" --train.steps?\n") &&
                       ContainsSubstring(" --model.n_hed=3;") &&
                       ContainsSubstring(" --model.n_head?"));

  // If several sections have a key with this name, the error names all of these keys.
  CHECK_THAT(error_of([] { parse_arguments(find_command("train"), {"a.toml", "--dtype=bf16"}); }),
             ContainsSubstring("--amp.dtype") && ContainsSubstring("--checkpoint.dtype"));

  for (const auto& [given, meant] :
       std::vector<std::pair<std::string, std::string>>{{"trian", "train"},
                                                        {"predct", "predict"},
                                                        {"generat", "generate"},
                                                        {"reports", "report"}})
    CHECK_THAT(error_of([&] { find_command(given); }),
               ContainsSubstring(given) && ContainsSubstring(" " + meant + "?"));
  CHECK_THAT(error_of([] { find_command("zzz"); }),
             ContainsSubstring("zzz") && !ContainsSubstring("?"));
}

TEST_CASE("bash completes subcommands, values and runs", "[help]") {
  const TempFolder f;
  for (const std::string run : {"runs/one", "runs/two"}) {
    fs::create_directories(f / run);
    write_file(f / run / "config.toml", "");
  }
  fs::create_directories(f / "runs/not-a-run");
  write_file(f / "lathe.bash", completion_script("bash"));
  // Completes the last word. As in bash, "=" is a separate word.
  const auto complete = [&](const std::string& words) {
    const std::string command =
        "cd '" + f.path().string() + "' && bash -c 'source lathe.bash; compopt() { :; }; " +
        "COMP_WORDS=(" + words + "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _lathe; " +
        "printf \"%s\\n\" \"${COMPREPLY[@]}\"' > out";
    REQUIRE(std::system(command.c_str()) == 0);
    Strings found;
    std::istringstream lines(slurp(f / "out"));
    for (std::string line; std::getline(lines, line);) found.push_back(line);
    std::sort(found.begin(), found.end());
    return found;
  };
  CHECK(complete("lathe find \"\"") == Strings{"batch", "lr"});
  CHECK(complete("lathe tokenizer en") == Strings{"encode"});
  CHECK(complete("lathe config completion z") == Strings{"zsh"});
  CHECK(complete("lathe eval runs/one --device = c") == Strings{"cpu", "cuda"});
  CHECK(complete("lathe eval runs/one --device c") == Strings{"cpu", "cuda"});
  CHECK(complete("lathe export runs/one --format \"\"") == Strings{"gguf", "hf", "onnx", "peft"});
  CHECK(complete("lathe prepare a.txt --format js") == Strings{"jsonl"});
  CHECK(complete("lathe eval runs/one --json --dev") == Strings{"--device="});

  const Strings runs{"runs/one", "runs/two"};
  CHECK(complete("lathe eval \"\"") != Strings{});
  for (const std::string command : {"eval", "watch", "inspect", "compare"}) {
    const Strings found = complete("lathe " + command + " runs/");
    INFO(command);
    for (const std::string& run : runs) CHECK(std::count(found.begin(), found.end(), run) == 1);
  }
  const Strings first = complete("lathe eval \"\"");
  CHECK(std::includes(first.begin(), first.end(), runs.begin(), runs.end()));
  CHECK(std::count(first.begin(), first.end(), "runs/not-a-run") == 0);
}

TEST_CASE("completion and the man page name every command and key", "[help]") {
  const std::string man = man_page();
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(shell);
    for (const Command& v : commands()) {
      INFO(shell << " " << v.name);
      CHECK(script.find(v.name) != std::string::npos);
      for (const Flag& flag : v.flags) {
        const std::string fish = (flag.name.size() == 1 ? "-s " : "-l ") + flag.name + " ";
        CHECK(script.find(shell == "fish" ? fish : flag.typed()) != std::string::npos);
        // In fish, -r marks an option that takes a value.
        const bool takes_value =
            script.find("from " + v.name + "' " + fish + "-r ") != std::string::npos;
        if (shell == "fish") CHECK(takes_value != v.switches.contains(flag.name));
      }
    }
    for (const Field& field : all_fields()) {
      INFO(shell << " " << field.key);
      CHECK(script.find((shell == "fish" ? "-l " : "--") + field.key) != std::string::npos);
    }
  }
  const auto plain = [](std::string text) {
    for (size_t at = 0; (at = text.find("\\-", at)) != std::string::npos;) text.erase(at, 1);
    return text;
  };
  const std::string text = plain(man);
  for (const Command& v : commands()) CHECK_THAT(text, ContainsSubstring("\n.B lathe " + v.name));
  for (const Field& field : all_fields())
    CHECK_THAT(text, ContainsSubstring("\n.B --" + field.key + "="));
  CHECK_THAT(error_of([] { completion_script("tcsh"); }),
             ContainsSubstring("tcsh") && ContainsSubstring("bash, zsh or fish"));

  // Run the script in bash.
  const TempFolder f;
  write_file(f / "lathe.bash", completion_script("bash"));
  const auto complete = [&](const std::string& words, int at) {
    const std::string command = "cd " + f.path().string() +
                                " && bash -c 'source lathe.bash; compopt() { :; }; COMP_WORDS=(" +
                                words + "); COMP_CWORD=" + std::to_string(at) +
                                "; _lathe; echo \"${COMPREPLY[@]}\"' > out";
    if (std::system(command.c_str()) != 0) return std::string("failed");
    return slurp(f / "out");
  };
  CHECK(complete("lathe repl", 1) == "replay\n");
  CHECK(complete("lathe train --train.see", 2) == "--train.seed=\n");
  CHECK(complete("lathe runs --js", 2) == "--json=\n");
  CHECK(complete("lathe train --memory.recompute = bl", 4) == "blocks\n");
  CHECK(complete("lathe runs --train.see", 2) == "\n");
}

}  // namespace
