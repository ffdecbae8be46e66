// Checks README.md and the pages of docs/ against the code: every command, option, config key and
// file in a block of code or a table exists. Prose is not checked. The tests also run those
// commands of the pages that take little time.
#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "nn/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/commands/commands.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Strings = std::vector<std::string>;

Strings words_of(const std::string& text) {
  std::istringstream in(text);
  Strings words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// The parts of a page that must agree with the code.
struct Page {
  struct Block {
    std::string language;
    std::string text;
  };
  std::vector<Block> blocks;
  Strings cells;  ///< code between backticks in tables

  explicit Page(const std::string& markdown);
};

Page::Page(const std::string& markdown) {
  std::istringstream lines(markdown);
  bool in_block = false, in_indented = false, after_blank = true;
  for (std::string line; std::getline(lines, line);) {
    // An indented block after a blank line is shell code.
    const bool is_indented = !in_block && line.starts_with("    ") && (in_indented || after_blank);
    if (is_indented) {
      if (!in_indented) blocks.push_back({"sh", ""});
      blocks.back().text += line.substr(4) + "\n";
    }
    in_indented = is_indented;
    after_blank = line.empty();
    if (is_indented) continue;

    if (line.starts_with("```")) {
      if (!in_block) blocks.push_back({line.substr(3), ""});
      in_block = !in_block;
      continue;
    }
    if (in_block) {
      blocks.back().text += line + "\n";
      continue;
    }
    if (!line.starts_with("|")) continue;

    // This line is a row of a table. A bar within a cell is written as \|.
    static const std::regex code("`([^`]+)`");
    for (std::sregex_iterator i(line.begin(), line.end(), code), end; i != end; ++i) {
      cells.push_back(replace_all((*i)[1], "\\|", "|"));
    }
  }
  if (in_block) blocks.push_back({"", "a fenced block has no end"});
}

/// Returns the commands of a block of shell without prompts, comments, assignments, redirections
/// and control words. In a block of language `console`, only lines with a prompt are commands.
std::vector<Strings> commands_of(const Page::Block& block) {
  static const std::set<std::string> shells{"sh", "bash", "shell", "console"};
  if (!shells.contains(block.language)) return {};

  std::vector<Strings> commands;
  std::istringstream lines(replace_all(block.text, "\\\n", " "));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("$ ")) {
      line.erase(0, 2);
    } else if (block.language == "console") {
      continue;
    }
    line = std::regex_replace(line, std::regex("(^|\\s)#.*"), "");
    line = std::regex_replace(line, std::regex("'[^']*'|\"[^\"]*\""), "TEXT");

    static const std::regex separator("&&|\\|\\||[|;&()]|<\\(");
    for (std::sregex_token_iterator i(line.begin(), line.end(), separator, -1), end; i != end;
         ++i) {
      Strings words = words_of(*i);
      const auto is_prefix = [](const std::string& word) {
        static const std::set<std::string> control{"do",   "then", "else", "time",
                                                   "nice", "srun", "exec"};
        return control.contains(word) || std::regex_match(word, std::regex("[A-Za-z_]+=.*"));
      };
      while (!words.empty() && is_prefix(words[0])) words.erase(words.begin());
      if (!words.empty()) commands.push_back(words);
    }
  }
  return commands;
}

const std::string& dev_help() {
  static const std::string help =
      run({source_folder() / "dev", {"help"}, fs::temp_directory_path(), {}}).out;
  return help;
}

bool is_section(const std::string& name) {
  const auto& sections = RunConfig::schema("gpt").sections();
  return std::any_of(sections.begin(), sections.end(),
                     [&](const auto& s) { return s.name == name; });
}

bool is_key(const std::string& key) {
  const auto& kinds = model_kinds();
  return std::any_of(kinds.begin(), kinds.end(), [&](const auto& kind) {
    return RunConfig::schema(kind.name).find(key) != nullptr;
  });
}

/// Returns the name in a word such as `--name=value` or `[--name`, or "" if the word is not an
/// option.
std::string option_of(std::string word) {
  if (word.starts_with("[")) word.erase(0, 1);
  if (!word.starts_with("--")) return "";
  return word.substr(2, word.find_first_of("=]", 2) - 2);
}

/// Collects the names that pages use and that do not exist.
class Checker {
 public:
  Strings problems;
  int command_count = 0, keys = 0, files = 0;

  void check(const std::string& markdown) {
    const Page page(markdown);
    for (const auto& block : page.blocks) check_block(block);
    for (const auto& cell : page.cells) check_cell(cell);
  }

 private:
  void check_block(const Page::Block& block) {
    if (block.text == "a fenced block has no end") problems.push_back(block.text);
    for (const auto& command : commands_of(block)) {
      check_command(command);
      for (const auto& word : command) {
        check_file(word);
        check_keys(word);
      }
    }
    if (block.language == "toml") check_toml(block.text);
    if (block.language == "cpp") check_includes(block.text);
  }

  void check_cell(const std::string& code) {
    const Strings words = words_of(code);
    if (words.empty()) return;
    check_command(words);
    if (!option_of(words[0]).empty()) check_lone_options(words);
    for (const auto& word : words) check_file(word);
    check_keys(code);
  }

  void check_command(Strings words) {
    std::string program = words[0];
    if (program.ends_with("/lathe")) program = "lathe";
    if (program == "./dev" && words.size() > 1) {
      ++command_count;
      check_dev(words);
      if (words[1] != "lathe" && words[1] != "train") return;
      if (words[1] == "lathe") words.erase(words.begin());
      program = "lathe";
    }
    if (program != "lathe" || words.size() < 2) return;

    ++command_count;
    const std::string& name = words[1];
    static const std::set<std::string> placeholders{"help", "--help", "--version", "COMMAND",
                                                    "..."};
    if (placeholders.contains(name)) return;
    const auto command = std::find_if(commands().begin(), commands().end(),
                                      [&](const auto& v) { return v.name == name; });
    if (command == commands().end()) {
      problems.push_back("lathe has no command " + name);
      return;
    }
    // `lathe launch` runs the command that follows "--".
    const auto inner = std::find(words.begin(), words.end(), "--");
    if (inner != words.end()) {
      Strings command{"lathe"};
      command.insert(command.end(), inner + 1, words.end());
      check_command(std::move(command));
    }
    for (const auto& word : Strings(words.begin(), inner)) {
      const std::string option = option_of(word);
      if (!option.empty() && !takes(*command, option))
        problems.push_back("lathe " + name + " has no --" + option);
    }
  }

  void check_dev(const Strings& words) {
    const std::string start = "\n  " + words[1] + " ";
    if (dev_help().find(start) == std::string::npos) {
      problems.push_back("./dev has no command " + words[1]);
      return;
    }
    if (words[1] == "lathe" || words[1] == "train") return;

    // Collect all paragraphs of the help about this command.
    std::string help;
    const std::regex own("\\n  " + words[1] + " [^\\n]*(\\n   [^\\n]*)*");
    for (std::sregex_iterator i(dev_help().begin(), dev_help().end(), own), end; i != end; ++i)
      help += i->str();
    for (const auto& word : words) {
      const std::string option = option_of(word);
      if (!option.empty() && !mentions(help, option)) {
        problems.push_back("./dev " + words[1] + " has no --" + option);
      }
    }
  }

  /// Checks the options of a cell that names no command. Each option must exist for at least one
  /// command.
  void check_lone_options(const Strings& words) {
    static const std::set<std::string> of_other_programs{"no-requeue"};  // an option of sbatch
    for (const auto& word : words) {
      const std::string option = option_of(word);
      if (option.empty() || of_other_programs.contains(option)) continue;
      const bool known = std::any_of(commands().begin(), commands().end(),
                                     [&](const auto& v) { return takes(v, option); });
      if (!known && !mentions(dev_help(), option)) {
        problems.push_back("no command has --" + option);
      }
    }
  }

  static bool mentions(const std::string& help, const std::string& option) {
    return std::regex_search(help, std::regex("--" + option + "(?![a-z0-9-])"));
  }

  template <class Command>
  static bool takes(const Command& command, const std::string& option) {
    if (option == "help" || option == "section.key") return true;
    if (command.config_keys && is_key(option)) return true;
    return std::any_of(command.flags.begin(), command.flags.end(),
                       [&](const auto& flag) { return flag.name == option; });
  }

  /// Checks that each `section.key` exists if its section exists.
  void check_keys(const std::string& code) {
    static const std::regex dotted(
        R"((?:^|[^A-Za-z0-9_./-]|--)([a-z]+)\.([a-z_0-9]+)(?![A-Za-z0-9_./(]))");
    static const std::set<std::string> extensions{"bin",   "cc",          "csv", "gz", "h",
                                                  "jsonl", "safetensors", "txt", "zst"};
    for (std::sregex_iterator i(code.begin(), code.end(), dotted), end; i != end; ++i) {
      const std::string section = (*i)[1], key = (*i)[2];
      if (is_section(section) && !extensions.contains(key)) check_key(section + "." + key);
    }
  }

  void check_key(const std::string& key) {
    ++keys;
    if (!is_key(key)) problems.push_back("there is no key " + key);
  }

  void check_toml(const std::string& text) {
    std::string section;
    std::istringstream lines(text);
    static const std::regex header(R"(\[([a-z_.]+)\]\s*(#.*)?)"),
        assignment(R"(([a-z_0-9.]+)\s*=.*)");
    for (std::string line; std::getline(lines, line);) {
      std::smatch found;
      if (std::regex_match(line, found, header)) {
        section = found[1];
        if (!is_section(section)) problems.push_back("there is no section " + section);
      } else if (std::regex_match(line, found, assignment)) {
        const std::string key = section.empty() ? found[1].str() : section + "." + found[1].str();
        check_key(key);
      }
    }
  }

  void check_includes(const std::string& text) {
    static const std::regex include(R"(#include [<"]lathe/([a-z0-9_/.]+)[>"])");
    for (std::sregex_iterator i(text.begin(), text.end(), include), end; i != end; ++i)
      check_file((*i)[1]);
  }

  /// Checks that a file of this repository exists. Folders such as data/ also hold files of the
  /// user, so only names with the extensions of Lathe's files are checked.
  void check_file(const std::string& word) {
    static const std::regex own(
        R"((\.ci|amp|autograd|configs|core|data|docs|examples|nn|optim|tests|tools|train)/[A-Za-z0-9_/.-]+\.(toml|md|py|cc|cu|h|sbatch|svg))");
    if (!std::regex_match(word, own)) return;
    ++files;
    if (!fs::exists(source_folder() / word)) problems.push_back("there is no file " + word);
  }
};

/// Returns the texts of README.md and of the pages of docs/, by their path.
std::map<std::string, std::string> pages() {
  std::map<std::string, std::string> found{{"README.md", slurp(source_folder() / "README.md")}};
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "docs")) {
    if (entry.path().extension() != ".md") continue;
    found[fs::relative(entry.path(), source_folder()).string()] = slurp(entry.path());
  }
  return found;
}

TEST_CASE("README.md and docs/ name only commands, options, keys and files that exist",
          "[doc_commands]") {
  int command_count = 0, keys = 0, files = 0;
  for (const auto& [path, text] : pages()) {
    Checker checker;
    checker.check(text);
    for (const auto& problem : checker.problems) {
      UNSCOPED_INFO(path << ": " << problem);
    }
    CHECK(checker.problems.empty());
    command_count += checker.command_count;
    keys += checker.keys;
    files += checker.files;
    if (path == "README.md") CHECK(checker.command_count >= 8);
  }

  // If the format of the pages changes, the checks must still find something to check.
  CHECK(command_count >= 40);
  CHECK(keys >= 40);
  CHECK(files >= 20);
}

TEST_CASE("the checker reports commands, options, keys and files that do not exist",
          "[doc_commands]") {
  const auto problems = [](const std::string& markdown) {
    Checker checker;
    checker.check(markdown);
    return checker.problems;
  };
  const auto shell = [&](const std::string& line) {
    return problems("```sh\n" + line + "\n```\n");
  };

  CHECK(shell("build/lathe trian configs/quickstart.toml") ==
        Strings{"lathe has no command trian"});
  CHECK(shell("lathe train configs/quickstart.toml && lathe evaluate runs/x") ==
        Strings{"lathe has no command evaluate"});
  CHECK(shell("LATHE_ISA=avx2 lathe generate runs/x --promt 'a b'") ==
        Strings{"lathe generate has no --promt"});
  CHECK(shell("lathe generate runs/x \\\n  --promt a") == Strings{"lathe generate has no --promt"});
  CHECK(shell("lathe train configs/quickstart.toml --train.stepz=5").size() ==
        2);  // reported as an option and as a key
  CHECK(shell("lathe train configs/quick.toml") == Strings{"there is no file configs/quick.toml"});
  CHECK(shell("./dev trian configs/quickstart.toml") == Strings{"./dev has no command trian"});
  CHECK(shell("./dev fuzz --run 5") == Strings{"./dev fuzz has no --run"});
  CHECK(shell("./dev setup --cdua") == Strings{"./dev setup has no --cdua"});
  CHECK(shell("./dev train configs/quickstart.toml --train.stepz=5").size() == 2);
  CHECK(problems("```console\n$ lathe trian x\nlathe evaluate\n```\n") ==
        Strings{"lathe has no command trian"});
  CHECK(problems("```toml\n[train]\nstepz = 5\n```\n") == Strings{"there is no key train.stepz"});
  CHECK(problems("```toml\n[trian]\n```\n") == Strings{"there is no section trian"});
  CHECK(problems("```cpp\n#include <lathe/nn/layer.h>\n```\n") ==
        Strings{"there is no file nn/layer.h"});
  CHECK(problems("Text:\n\n    lathe trian\n") == Strings{"lathe has no command trian"});
  CHECK(problems("| `lathe trian` | x |\n") == Strings{"lathe has no command trian"});
  CHECK(problems("| `--promt` | x |\n") == Strings{"no command has --promt"});
  CHECK(problems("| `train.stepz` | x |\n") == Strings{"there is no key train.stepz"});
  CHECK(problems("| `docs/no.md` | x |\n") == Strings{"there is no file docs/no.md"});
  CHECK(problems("```sh\nlathe train x.toml\n").size() == 1);  // the block has no end

  // Correct names and prose cause no findings.
  CHECK(shell("lathe eval runs/x  # lathe evaluate") == Strings{});
  CHECK(problems("| `lathe bench step CONFIG\\|RUN` | x |\n") == Strings{});
  CHECK(problems("`lathe trian` has `--promt`, `train.stepz` and `docs/no.md`.\n") == Strings{});
}

TEST_CASE("the C++ program in README.md is the program of examples/own_loop", "[doc_commands]") {
  const auto without_space = [](std::string text) {
    std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
    return text;
  };
  const std::string example = without_space(slurp(source_folder() / "examples/own_loop/main.cc"));
  const Page page(slurp(source_folder() / "README.md"));
  int lines = 0;
  for (const auto& block : page.blocks) {
    if (block.language != "cpp") continue;
    std::istringstream in(block.text);
    for (std::string line; std::getline(in, line);) {
      ++lines;
      CHECK_THAT(example, ContainsSubstring(without_space(line)));
    }
  }
  CHECK(lines > 15);
}

TEST_CASE("the version is that of the newest release", "[doc_commands]") {
  const std::string version = std::string(program_version).substr(std::string("lathe ").size());
  CHECK_THAT(slurp(source_folder() / "CMakeLists.txt"),
             ContainsSubstring("project(lathe VERSION " + version));
  const std::string changes = slurp(source_folder() / "CHANGELOG.md");
  const size_t newest = changes.find("## [", changes.find("## [Unreleased]") + 1);
  CHECK(changes.substr(newest).starts_with("## [" + version + "]"));
}

TEST_CASE("docs/ lists every exit code and every Debian package", "[doc_commands]") {
  // The expected codes are the codes in the help, and 130, which a second SIGINT gives.
  const std::string help = run({.binary = "lathe",
                                .args = {"--help"},
                                .folder = fs::temp_directory_path(),
                                .environment = {}})
                               .out;
  std::set<std::string> expected{"130"};
  static const std::regex number("[0-9]+");
  const std::string codes = help.substr(std::min(help.find("Exit codes:"), help.size()));
  for (std::sregex_iterator i(codes.begin(), codes.end(), number), end; i != end; ++i)
    expected.insert(i->str());
  CHECK(expected.size() == 13);

  std::set<std::string> listed;
  std::istringstream lines(slurp(source_folder() / "docs/reference/exit-codes.md"));
  static const std::regex row("\\| ([0-9]+) \\|.*");
  std::smatch found;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, found, row)) listed.insert(found[1]);
  }
  CHECK(listed == expected);

  const std::string dev = slurp(source_folder() / "tools/dev/setup.sh");
  const size_t open = dev.find("packages=("), close = dev.find(')', open);
  REQUIRE(close != std::string::npos);
  const Strings packages = words_of(dev.substr(open + 10, close - open - 10));
  CHECK(packages.size() > 15);
  std::string page = slurp(source_folder() / "docs/guide/quickstart.md");
  std::replace_if(page.begin(), page.end(), [](char c) { return c == ',' || c == '`'; }, ' ');
  Strings words = words_of(page);
  for (auto& word : words) {
    if (word.ends_with(".")) word.pop_back();
  }
  for (const auto& package : packages) {
    INFO(package);
    CHECK(std::find(words.begin(), words.end(), package) != words.end());
  }
}

TEST_CASE("commands of the pages run with the reader's own text and table", "[doc_commands]") {
  const TempFolder f;
  write_file(f / "my.txt", sample_text(20000));
  std::string table = "width,height,kind\n";
  for (int i = 0; i < 60; ++i) {
    table += std::to_string(i % 7) + "," + std::to_string(i % 5) + (i % 2 ? ",red\n" : ",blue\n");
  }
  write_file(f / "my.csv", table);
  fs::copy(source_folder() / "configs", f / "configs");

  // The command `prepare` of a page runs unchanged. `train` would take minutes, so only its config
  // and options are checked.
  int prepared = 0, checked = 0;
  for (const auto& [path, text] : pages()) {
    for (const auto& block : Page(text).blocks) {
      for (Strings words : commands_of(block)) {
        if (words.size() < 3) continue;
        const auto takes_word = [&](const std::string& word) {
          return std::find(words.begin(), words.end(), word) != words.end();
        };
        const bool needs_tokenizer =
            takes_word("--tokenizer") && !takes_word("char") && !takes_word("byte");
        if (words[1] == "prepare" && words[2].starts_with("my.") && !needs_tokenizer) {
          words.erase(words.begin());
          ++prepared;
          fs::remove_all(f / "data");
        } else if (words[1] == "train" && words[2].starts_with("configs/")) {
          words[0] = "config";
          words[1] = "check";
          ++checked;
        } else {
          continue;
        }
        if (words.back() == "&") words.pop_back();
        const Finished r =
            run({.binary = "lathe", .args = words, .folder = f.path(), .environment = {}});
        INFO(path << ": " << words[0] << " " << words[2] << "\n" << r.err);
        CHECK(r.code == 0);
        if (words[0] != "prepare") continue;
        const auto out = std::find(words.begin(), words.end(), "--out");
        REQUIRE(words.end() - out > 1);
        CHECK(fs::exists(f.path() / out[1] / "manifest.json"));
      }
    }
  }
  CHECK(prepared >= 1);
  CHECK(checked >= 3);
}

}  // namespace
