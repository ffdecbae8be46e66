// Tests that names and texts from files reach a terminal without control characters.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <regex>

#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/commands/commands.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// A text that sets a terminal's title, rings its bell, clears it with a control character of
/// Latin-1, and deletes a character.
const std::string foreign =
    "a\x1b]0;t\x07\xc2\x9b"
    "2J\x7fz";
const std::string foreign_shown = "a\\x1b]0;t\\x07\\xc2\\x9b2J\\x7fz";

/// Runs lathe with a terminal as its standard input, output and error. Returns the terminal's
/// output and the exit code. `keys` are typed before lathe starts.
Finished on_terminal(const fs::path& folder, std::vector<std::string> words,
                     const std::string& keys = "") {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const int side = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(side >= 0);
  REQUIRE(::write(terminal, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));

  words.insert(words.begin(), (binary_folder() / "lathe").string());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::string cache = "LATHE_CACHE=" + (folder / "cache").string(), term = "TERM=xterm",
              path = "PATH=/usr/bin";
  char* environment[]{cache.data(), term.data(), path.data(), nullptr};
  const pid_t pid = fork();
  if (pid == 0) {
    setsid();
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(side, fd);
    if (chdir(folder.c_str()) == 0) execve(arguments[0], arguments.data(), environment);
    _exit(127);
  }
  close(side);

  Finished f;
  char buffer[4096];
  for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;)
    f.out.append(buffer, static_cast<size_t>(n));
  close(terminal);
  int status = 0;
  waitpid(pid, &status, 0);
  f.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return f;
}

/// Returns whether a terminal shows all of this text. The text must be UTF-8 and have no control
/// characters, except the sequences that Lathe writes to set colors, erase a line or switch the
/// screen.
bool is_harmless(const std::string& out) {
  const std::string text = std::regex_replace(out, std::regex("\x1b\\[[?0-9;]*[mKJHhl]"), "");
  return is_utf8(text) && printable(replace_all(text, "\r", "")) == replace_all(text, "\r", "");
}

TEST_CASE("control characters are shown in a visible form", "[terminal]") {
  CHECK(printable(foreign) == foreign_shown);
  CHECK(printable("a\tb\nc\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \\x1b") ==
        "a\tb\nc\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \\x1b");
  CHECK(printable(std::string("\0\r", 2)) == "\\x00\\x0d");
  CHECK(printable("\x80\xc2\x80\xc2\x9f\xc2\xa0\xc2") == "\\x80\\xc2\\x80\\xc2\\x9f\xc2\xa0\\xc2");
  CHECK(printable("\xed\xa0\x80\xff") == "\\xed\\xa0\\x80\\xff");  // a surrogate
  CHECK(printable_line("a\tb\nc") == "a\\x09b\\x0ac");
  // Characters that change the direction of text are escaped, but their neighbors in Unicode are
  // not.
  CHECK(printable("\u202a\u202e\u2066\u2069") ==
        "\\xe2\\x80\\xaa\\xe2\\x80\\xae\\xe2\\x81\\xa6\\xe2\\x81\\xa9");
  CHECK(printable("\u2029\u202f\u2065\u206a") == "\u2029\u202f\u2065\u206a");

  CHECK(incomplete_bytes("") == 0);
  CHECK(incomplete_bytes("a\xc3\xa9") == 0);
  CHECK(incomplete_bytes("a\xc3") == 1);
  CHECK(incomplete_bytes("\xe2\x82") == 2);
  CHECK(incomplete_bytes("\xf0\x9f\x98") == 3);
  CHECK(incomplete_bytes("\xf0\x9f\x98\x80") == 0);
  CHECK(incomplete_bytes("\x82\x82\x82\x82") == 0);
}

TEST_CASE("a warning or an error is one write, so that lines of several processes do not mix",
          "[terminal]") {
  // A pipe in packet mode keeps the boundaries between writes.
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_DIRECT | O_CLOEXEC | O_NONBLOCK) == 0);
  const int before = dup(STDERR_FILENO);
  REQUIRE(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
  const std::string text(1000, 'x');
  log(Level::error, text);
  log(Level::warn, text);
  dup2(before, STDERR_FILENO);
  close(before);
  close(ends[1]);

  std::vector<std::string> writes;
  std::array<char, 4096> buffer{};
  for (ssize_t n; (n = read(ends[0], buffer.data(), buffer.size())) > 0;)
    writes.emplace_back(buffer.data(), static_cast<size_t>(n));
  close(ends[0]);
  CHECK(writes == std::vector<std::string>{"error: " + text + "\n", "warning: " + text + "\n"});
}

TEST_CASE("names of files and texts in files are escaped on a terminal", "[terminal]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const fs::path run = fs::path("runs") / foreign;
  REQUIRE(
      lathe_in(f, {"train", "tiny.toml", "--train.steps=4", "--train.out_dir=runs/tiny"}).code ==
      0);
  fs::copy(f / "runs/tiny", f.path() / run, fs::copy_options::recursive);
  REQUIRE(lathe_in(f, {"tokenizer", "train", "text.txt", "--out", "bpe", "--vocab-size", "300",
                       "--special", foreign})
              .code == 0);
  const std::string header =
      json_text(Json{{"__metadata__", {{"key" + foreign, "value"}}},
                     {foreign, {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {0, 4}}}}});
  write_file(f / "names.safetensors",
             packed<uint64_t>({header.size()}) + header + std::string(4, '\0'));
  write_file(f / "table.csv", "b," + foreign + "\n1,2\n3,4\n");
  for (const std::string folder : {"hf", "bad", "merges"}) fs::create_directory(f / folder);
  write_file(f / "hf/config.json", json_text(Json{{"model_type", foreign}}));
  write_file(f / "bad/tokenizer.json", json_text(Json{{"model", {{"type", foreign}}}}));
  write_file(f / "merges/vocab.json", "{\"a\":0}");
  write_file(f / "merges/merges.txt", "a " + foreign + "\n");
  write_file(f / "keys.toml",
             "[train]\n\"" + std::string("a\\u001b]0;t\\u0007\\u009b2J\\u007fz") + "\" = 1\n");

  const std::string name = run.string();
  struct Case {
    std::vector<std::string> words;
    int code = 0;
    std::string shown = foreign_shown;
    std::string keys{};
  };
  for (const Case& c : std::vector<Case>{
           {{"runs"}},
           {{"runs", "--json=true"}, 0, "2J\\x7fz"},  // JSON escapes most control characters
           {{"compare", "runs/tiny", name}},
           {{"verify", name}},
           {{"inspect", name}},
           {{"watch", name}, 0, foreign_shown, "q"},
           {{"report", name, "--out", foreign + ".html"}},
           {{"eval", name}, 0, "val"},
           {{"train", "tiny.toml", "--train.steps=4", "--train.out_dir=" + name}},
           {{"train", "tiny.toml", "--train.steps=2", "--train.out_dir=" + foreign}},
           {{"inspect", "names.safetensors"}},
           {{"tokenizer", "inspect", "--tokenizer=bpe"}},
           {{"prepare", "text.txt", "--out", foreign + "-data", "--tokenizer", "char"}},
           {{"sweep", "tiny.toml", "--train.seed=1,2", "--train.steps=1", "--out",
             foreign + "-sweep"}},
           // These commands end with an error.
           {{foreign}, 2},
           {{"train", "tiny.toml", "--" + foreign + "=1"}, 2},
           {{"train", foreign + ".toml"}, 2},
           {{"train", "keys.toml"}, 2},
           {{"eval", "no" + foreign}, 4},
           {{"import", "hf", "--out", "new"}, 4},
           {{"tokenizer", "inspect", "--tokenizer=bad"}, 3},
           {{"tokenizer", "inspect", "--tokenizer=merges"}, 3},
           {{"prepare", "table.csv", "--out", "new", "--target", "no" + foreign}, 2},
       }) {
    const Finished got = on_terminal(f.path(), c.words, c.keys);
    INFO(c.words[0] << (c.words.size() > 1 ? " " + printable(c.words[1]) : "") << ": "
                    << printable(got.out));
    CHECK(got.code == c.code);
    CHECK(is_harmless(got.out));
    CHECK(got.out.find(c.shown) != std::string::npos);
  }

  // An error message is escaped both on a terminal and in a pipe. Other output goes to a pipe
  // unchanged.
  const Finished error = lathe_in(f, {"eval", "no" + foreign});
  CHECK_THAT(error.err, ContainsSubstring(foreign_shown));
  const Finished piped = lathe_in(f, {"tokenizer", "inspect", "--tokenizer=bpe"});
  CHECK_THAT(piped.out, ContainsSubstring(foreign));
}

TEST_CASE("every command escapes control characters in names of files, runs and options",
          "[terminal]") {
  const TempFolder f;
  write_file(f / foreign, foreign);
  for (const Command& command : commands()) {
    for (const std::vector<std::string>& words : {std::vector<std::string>{foreign},
                                                  {foreign, foreign},
                                                  {"no" + foreign, "--out", foreign},
                                                  {"--" + foreign + "=1"}}) {
      std::vector<std::string> line{command.name};
      line.insert(line.end(), words.begin(), words.end());
      const Finished got = on_terminal(f.path(), line, "q");
      INFO(command.name << " with " << words.size() << " words: " << printable(got.out));
      CHECK(is_harmless(got.out));
      CHECK(got.code != 1);
      CHECK(got.code < 128);
    }
  }
}

TEST_CASE("a model's text is escaped on a terminal and unchanged in a pipe", "[terminal]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"tokenizer", "train", "text.txt", "--out", "bpe", "--vocab-size", "300",
                       "--special", "<|im_start|>,<|im_end|>"})
              .code == 0);
  REQUIRE(lathe_in(f, {"prepare", "text.txt", "--out", "bytes", "--tokenizer", "bpe"}).code == 0);
  const std::vector<std::string> train{"train", "tiny.toml", "--data.dir=bytes", "--train.steps=1",
                                       "--train.sample_interval=1"};

  // After one step the model samples all bytes with nearly equal probability.
  const auto check = [&](const Finished& got) {
    INFO(printable(got.out));
    CHECK(got.code == 0);
    CHECK(is_harmless(got.out));
    CHECK(got.out.find("\\x") != std::string::npos);
  };
  check(on_terminal(f.path(), train));
  CHECK(is_harmless(slurp(f / "runs/tiny/log.txt")));
  const std::vector<std::string> generate{"generate", "runs/tiny", "--tokens=400",
                                          "--temperature=1", "--ignore-eos=true"};
  check(on_terminal(f.path(), generate));
  check(on_terminal(f.path(), {"chat", "runs/tiny", "--tokens=400", "--temperature=1"},
                    "hello\n\x04"));
  std::vector<std::string> several = generate;
  several.push_back("--samples=2");
  check(on_terminal(f.path(), several));

  // In a pipe, the same text has the unchanged bytes. A terminal shows them escaped.
  const Finished piped = lathe_in(f, generate);
  const std::string shown = on_terminal(f.path(), generate).out;
  CHECK(!is_harmless(piped.out));
  CHECK_THAT(replace_all(shown, "\r\n", "\n"), ContainsSubstring(printable(piped.out)));
}

}  // namespace
