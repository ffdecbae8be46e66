// README.md against what is there: every command's verb and options, every config key, file and
// exit code in it. What is cheap is run.
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "tests/catch.h"
#include "tests/process.h"
#include "train/verbs/verbs.h"

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

/// What stands in code: indented blocks a line each, and what is between backticks, which may go
/// over a line's end.
Strings code_in(const std::string& text) {
  Strings found;
  std::string prose;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    "))
      found.push_back(line.substr(4));
    else
      prose += line + " ";
  }
  for (size_t begin = 0; (begin = prose.find('`', begin)) != std::string::npos;) {
    const size_t end = prose.find('`', begin + 1);
    REQUIRE(end != std::string::npos);
    std::string code = prose.substr(begin + 1, end - begin - 1);
    for (size_t at = 0; (at = code.find("\\|", at)) != std::string::npos;)
      code.erase(at, 1);  // in a table
    found.push_back(code);
    begin = end + 1;
  }
  return found;
}

const Verb* verb_named(const std::string& name) {
  const auto found =
      std::find_if(verbs().begin(), verbs().end(), [&](const Verb& v) { return v.name == name; });
  return found == verbs().end() ? nullptr : &*found;
}

/// The first of `--name=value`, `[--name` and the like; "" where the word is no option.
std::string option_of(std::string word) {
  if (word.starts_with("[")) word.erase(0, 1);
  if (!word.starts_with("--")) return "";
  return word.substr(2, word.find_first_of("=]", 2) - 2);
}

bool takes(const Verb& verb, const std::string& option) {
  if (option == "help" || option == "section.key") return true;
  if (verb.config_keys && RunConfig::schema("gpt").find(option) != nullptr) return true;
  return std::any_of(verb.flags.begin(), verb.flags.end(),
                     [&](const auto& flag) { return flag.first == option; });
}

TEST_CASE("every command in the README is one that there is", "[readme]") {
  const std::string readme = slurp(source_folder() / "README.md");
  const std::string dev_help =
      run({source_folder() / "dev", {"help"}, fs::temp_directory_path(), {}}).out;
  int lathe_commands = 0, dev_commands = 0, keys = 0;
  for (const std::string& code : code_in(readme)) {
    INFO(code);
    Strings words = words_of(code);
    std::erase_if(words, [](const std::string& w) {
      return w.find_first_of("=") < w.find_first_of("-/");
    });  // X=y
    if (words.empty()) continue;
    std::string program = words[0];
    if (program.ends_with("/lathe")) program = "lathe";
    if (program == "./dev" && words.size() > 1) {
      ++dev_commands;
      const size_t at = dev_help.find("\n  " + words[1] + " ");
      REQUIRE(at != std::string::npos);
      if (words[1] == "lathe") {
        words.erase(words.begin());
        program = "lathe";
      } else if (words[1] == "train") {
        program = "lathe";
      } else {
        const std::regex own("\\n  " + words[1] + "[^\\n]*(\\n   [^\\n]*)*");
        std::smatch lines;
        REQUIRE(std::regex_search(dev_help, lines, own));
        for (const auto& w : words) {
          if (!option_of(w).empty())
            CHECK_THAT(lines.str(), ContainsSubstring("--" + option_of(w)));
        }
      }
    }
    if (program == "lathe" && words.size() > 1 && words[1] != "VERB" && words[1] != "help") {
      ++lathe_commands;
      const Verb* verb = verb_named(words[1]);
      REQUIRE(verb != nullptr);
      for (const auto& w : words) {
        if (!option_of(w).empty()) CHECK((takes(*verb, option_of(w))));
      }
    } else if (!option_of(words[0]).empty()) {  // options alone: some verb's
      for (const auto& w : words) {
        if (option_of(w).empty()) continue;
        const std::string option = option_of(w);
        CHECK((std::any_of(verbs().begin(), verbs().end(),
                           [&](const Verb& v) { return takes(v, option); }) ||
               dev_help.find("--" + option) != std::string::npos));
      }
    }
    // Keys of the config, wherever they stand.
    const std::regex key(R"((?:^|[^A-Za-z0-9_./-]|--)([a-z]+)\.([a-z_0-9]+)(?![A-Za-z0-9_./]))");
    for (std::sregex_iterator i(code.begin(), code.end(), key), end; i != end; ++i) {
      const auto& sections = RunConfig::schema("gpt").sections();
      if (std::none_of(sections.begin(), sections.end(),
                       [&](const Section& s) { return s.name == (*i)[1]; }))
        continue;
      if (std::set<std::string>{"bin", "safetensors", "txt"}.contains((*i)[2])) continue;  // a file
      ++keys;
      CHECK((RunConfig::schema("gpt").find((*i)[1].str() + "." + (*i)[2].str()) != nullptr));
    }
    if (std::regex_match(code, std::regex("(configs|docs|tests)/[a-z0-9_/]+\\.[a-z]+")))
      CHECK(fs::exists(source_folder() / code));
  }
  CHECK(lathe_commands > 15);  // of the README's; so that a change of its form is noticed
  CHECK(dev_commands > 4);
  CHECK(keys > 8);
}

TEST_CASE("the README's table has every verb, its list every exit code and package", "[readme]") {
  const std::string readme = slurp(source_folder() / "README.md"),
                    dev = slurp(source_folder() / "dev");
  for (const Verb& verb : verbs())
    CHECK_THAT(readme, ContainsSubstring(std::string("`lathe ") + verb.name + " "));
  const auto numbers = [](const std::string& text) {
    std::set<std::string> found;
    const size_t begin = text.find("Exit codes:"), end = text.find("\n\n", begin);
    REQUIRE(begin != std::string::npos);
    const std::string part = text.substr(begin, end - begin);
    const std::regex number("[0-9]+");
    for (std::sregex_iterator i(part.begin(), part.end(), number), stop; i != stop; ++i)
      found.insert(i->str());
    return found;
  };
  const std::string help = run({"lathe", {"--help"}, fs::temp_directory_path(), {}}).out + "\n";
  CHECK(numbers(help).size() == 10);
  CHECK(numbers(readme) == numbers(help));
  const size_t open = dev.find("packages=("), close = dev.find(')', open);
  std::string flat = readme;
  std::replace(flat.begin(), flat.end(), '\n', ' ');
  const size_t install = flat.find("`apt-get install ");
  REQUIRE(install != std::string::npos);
  const Strings named =
      words_of(flat.substr(install + 17, flat.find('`', install + 1) - install - 17));
  CHECK(named == words_of(dev.substr(open + 10, close - open - 10)));
}

TEST_CASE("the README's commands of one's own text do what they say", "[readme]") {
  const TempFolder f;
  write_file(f / "my.txt", sample_text(20000));
  std::string table = "width,height,kind\n";
  for (int i = 0; i < 60; ++i)
    table += std::to_string(i % 7) + "," + std::to_string(i % 5) + (i % 2 ? ",red\n" : ",blue\n");
  write_file(f / "my.csv", table);
  fs::copy(source_folder() / "configs", f / "configs");
  int prepared = 0, checked = 0;
  for (const std::string& code : code_in(slurp(source_folder() / "README.md"))) {
    Strings words = words_of(code);
    if (words.size() < 3) continue;
    if (words[0] == "build/lathe" && words[1] == "prepare" && words[2].starts_with("my.")) {
      words.erase(words.begin());
      ++prepared;
    } else if (words[1] == "train" && words[2].starts_with("configs/")) {
      words[0] = "config", words[1] = "check";  // the training itself takes minutes
      ++checked;
    } else {
      continue;
    }
    const Finished r = run({"lathe", words, f.path(), {}});
    INFO(code << "\n" << r.err);
    CHECK(r.code == 0);
  }
  CHECK(prepared == 2);
  CHECK(checked == 3);
  CHECK(fs::exists(f / "data/my/manifest.json"));
  CHECK(fs::exists(f / "data/mine/manifest.json"));
}

}  // namespace
