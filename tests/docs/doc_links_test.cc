// Checks the links of the documentation: each relative link names an existing file or folder, and
// each #anchor a heading of its target.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using Strings = std::vector<std::string>;

/// Returns the lines of a page without fenced blocks and blocks indented by four columns.
Strings text_lines(const std::string& page) {
  Strings lines;
  std::string fence;
  bool after_blank = true, indented = false;
  std::istringstream in(page);

  for (std::string line; std::getline(in, line);) {
    const std::string marker = line.substr(std::min(line.find_first_not_of(' '), line.size()), 3);
    if (!fence.empty()) {
      if (marker == fence) fence.clear();
      continue;
    }
    if (marker == "```" || marker == "~~~") {
      fence = marker;
      continue;
    }

    // An indented block begins only after a blank line. Without a blank line, an indented line
    // continues the paragraph or list above it.
    indented = line.starts_with("    ") && (after_blank || indented);
    after_blank = line.find_first_not_of(" \t") == std::string::npos;
    if (!indented) lines.push_back(line);
  }
  return lines;
}

/// Returns `line` without its code spans, which have no links.
std::string without_code(const std::string& line) {
  std::string text;
  bool code = false;
  for (const char c : line) {
    if (c == '`')
      code = !code;
    else if (!code)
      text += c;
  }
  return text;
}

/// Returns the anchor of a heading: lower case, spaces as hyphens, punctuation dropped.
std::string anchor_of(const std::string& heading) {
  std::string text;
  for (size_t i = 0; i < heading.size(); ++i) {
    // A link in a heading contributes only its text.
    if (heading[i] == ']' && i + 1 < heading.size() && heading[i + 1] == '(') {
      i = std::min(heading.find(')', i), heading.size() - 1);
      continue;
    }
    const auto c = static_cast<unsigned char>(heading[i]);
    if (c == ' ')
      text += '-';
    else if (std::isalnum(c) || c == '-' || c == '_' || c >= 0x80)
      text += static_cast<char>(std::tolower(c));
  }
  return text;
}

/// Returns the anchors of a page's headings. The anchors of repeated headings end with -1, -2 and
/// so on.
std::set<std::string> anchors_in(const std::string& page) {
  std::set<std::string> anchors;
  std::map<std::string, int> seen;
  for (const std::string& line : text_lines(page)) {
    const size_t level = line.find_first_not_of('#');
    if (level == 0 || level > 6 || level == std::string::npos || line[level] != ' ') continue;
    const size_t last = line.find_last_not_of(" \t\r");
    const std::string anchor = anchor_of(line.substr(level + 1, last - level));
    const int times = seen[anchor]++;
    anchors.insert(times == 0 ? anchor : anchor + "-" + std::to_string(times));
  }
  return anchors;
}

/// Returns the targets of a page's links and images: [text](target), ![text](target),
/// [label]: target, and the href and src of HTML tags.
Strings links_in(const std::string& page) {
  // A link's text may continue on the next line, so all lines are joined.
  std::string text;
  Strings targets;
  for (const std::string& line : text_lines(page)) {
    const size_t label = line.starts_with("[") ? line.find("]: ") : std::string::npos;
    if (label != std::string::npos && line.find(']') == label) {
      std::istringstream(line.substr(label + 3)) >> targets.emplace_back();
      continue;
    }
    text += line + "\n";
  }
  text = without_code(text);

  for (const std::string& opening :
       {std::string("]("), std::string("href=\""), std::string("src=\"")}) {
    const char closing = opening == "](" ? ')' : '"';
    for (size_t at = text.find(opening); at != std::string::npos; at = text.find(opening, at + 1)) {
      const size_t begin = at + opening.size(), end = text.find(closing, begin);
      if (end == std::string::npos) break;
      std::string target = text.substr(begin, end - begin);
      target = target.substr(0, target.find_first_of(" \n"));  // drops the link's title
      targets.push_back(target);
    }
  }
  return targets;
}

/// Returns the broken links of the page at `path`, each with its problem.
Strings broken_links(const fs::path& path, const std::string& page) {
  Strings broken;
  for (const std::string& link : links_in(page)) {
    if (link.find("://") != std::string::npos || link.starts_with("mailto:")) continue;
    const size_t hash = link.find('#');
    const std::string file = link.substr(0, hash);
    const fs::path target = file.empty() ? path : path.parent_path() / file;
    if (file.starts_with("/")) {
      broken.push_back(link + ": not a relative path");
      continue;
    }
    if (!file.empty() && !fs::exists(target)) {
      broken.push_back(link + ": no such file");
      continue;
    }
    if (hash == std::string::npos || (!file.empty() && target.extension() != ".md")) continue;
    if (!anchors_in(file.empty() ? page : slurp(target)).contains(link.substr(hash + 1)))
      broken.push_back(link + ": no such heading");
  }
  return broken;
}

/// Returns the paths of README.md, CONTRIBUTING.md, CHANGELOG.md and every page below docs/.
std::vector<fs::path> linked_pages() {
  std::vector<fs::path> found;
  for (const char* name : {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}) {
    if (fs::exists(source_folder() / name)) found.push_back(source_folder() / name);
  }
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "docs")) {
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST_CASE("every relative link in the documentation has a target", "[doc_links]") {
  size_t links = 0;
  for (const fs::path& path : linked_pages()) {
    INFO(fs::relative(path, source_folder()).string());
    const std::string page = slurp(path);
    links += links_in(page).size();
    for (const std::string& link : broken_links(path, page)) FAIL_CHECK(link);
  }
  CHECK(links > 50);  // fails if a change of format hides the links from this test
}

TEST_CASE("docs/README.md links to every page of the documentation", "[doc_links]") {
  const fs::path index = source_folder() / "docs/README.md";
  std::set<fs::path> linked{index};
  for (const std::string& link : links_in(slurp(index)))
    linked.insert((index.parent_path() / link.substr(0, link.find('#'))).lexically_normal());
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "docs")) {
    if (entry.path().extension() != ".md") continue;
    INFO(fs::relative(entry.path(), source_folder()).string());
    CHECK(linked.contains(entry.path()));
  }
}

TEST_CASE("the quickstart lists the packages that ./dev installs", "[doc_links]") {
  const auto words_between = [](const std::string& text, const std::string& begin,
                                const std::string& end) {
    const size_t at = text.find(begin);
    REQUIRE(at != std::string::npos);
    const size_t first = at + begin.size();
    std::istringstream in(text.substr(first, text.find(end, first) - first));
    Strings words;
    for (std::string word; in >> word;) {
      if (word != "\\") words.push_back(word);
    }
    return words;
  };
  const Strings installed =
      words_between(slurp(source_folder() / "tools/dev/setup.sh"), "packages=(", ")");
  CHECK(installed.size() > 10);
  CHECK(words_between(slurp(source_folder() / "docs/guide/quickstart.md"), "apt-get install ",
                      "\n\n") == installed);
}

TEST_CASE("the link check finds broken links", "[doc_links]") {
  const TempFolder f;
  fs::create_directory(f / "guide");
  write_file(f / "guide/other.md",
             "# Other page\n\n## Same\n\n## Same\n\n## `--fit` and [more](x.md): 8 GB\n");
  const auto broken = [&](const std::string& page) { return broken_links(f / "README.md", page); };

  // These links are correct.
  CHECK(broken("# Top\n[a](guide/other.md) [b](guide/other.md#same-1) [c](#top) [d](guide) "
               "![e](guide/other.md \"t\")")
            .empty());
  CHECK(broken("[a](guide/other.md#--fit-and-more-8-gb)").empty());
  CHECK(broken("[site](https://example.org/absent.md) [mail](mailto:a@example.org)").empty());

  // These texts are not links.
  CHECK(broken("`[a](absent.md)`\n\n```sh\n[a](absent.md)\n```\n\n    [a](absent.md)\n").empty());
  CHECK(broken("1. Item\n\n   ```sh\n   [a](absent.md)\n   ```\n").empty());
  CHECK(broken("# Top\n\n```sh\n# comment\n```\n[a](#comment)") ==
        Strings{"#comment: no such heading"});

  // These links are broken. There is one of each form.
  CHECK(broken("[a](absent.md)") == Strings{"absent.md: no such file"});
  CHECK(broken("text with [a\nlink](absent.md) in it") == Strings{"absent.md: no such file"});
  CHECK(broken("![a](absent.svg)") == Strings{"absent.svg: no such file"});
  CHECK(broken("<img alt=\"a\" src=\"absent.svg\">") == Strings{"absent.svg: no such file"});
  CHECK(broken("[a]: absent.md") == Strings{"absent.md: no such file"});
  CHECK(broken("| [a](absent.md) | b |") == Strings{"absent.md: no such file"});
  CHECK(broken("- item\n    [a](absent.md)") == Strings{"absent.md: no such file"});
  CHECK(broken("[a](/README.md)") == Strings{"/README.md: not a relative path"});
  CHECK(broken("[a](guide/other.md#absent)") == Strings{"guide/other.md#absent: no such heading"});
  CHECK(broken("[a](guide/other.md#same-2)") == Strings{"guide/other.md#same-2: no such heading"});
  CHECK(broken("# Top\n[a](#absent)") == Strings{"#absent: no such heading"});
}

}  // namespace
