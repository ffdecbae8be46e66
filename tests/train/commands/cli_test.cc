// Tests that bad input on the command line gives an exit code and one sentence, and creates
// nothing.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "core/device.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/commands/commands.h"

namespace {

using namespace lathe;
using namespace lathe::test;

struct Bad {
  std::vector<std::string> args;
  int code;
  std::string text;
};

/// Runs the command of each case in the folder. The command must end with the exit code of the case
/// and print one line to standard error, and no file may appear or vanish.
void refuse(const TempFolder& f, const std::vector<Bad>& cases) {
  const auto listing = [&] {
    std::set<std::string> names;
    for (const auto& e : fs::recursive_directory_iterator(f.path()))
      names.insert(e.path().string());
    return names;
  };
  const auto before = listing();
  for (const auto& bad : cases) {
    std::string line;
    for (const auto& a : bad.args) line += a + " ";
    const Finished r = run({.binary = "lathe",
                            .args = bad.args,
                            .folder = f.path(),
                            .environment = {{"CUDA_VISIBLE_DEVICES", ""}}});  // hides GPUs
    INFO(line << "\n" << r.err);
    CHECK(r.code == bad.code);
    CHECK_THAT(r.err, ContainsSubstring(bad.text));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
    CHECK((listing() == before));  // in parentheses, so that Catch2 does not print the listing
  }
}

TEST_CASE("bad command lines are refused with an exit code and one sentence", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());

  refuse(f,
         {{{"trian"}, 2, "train?"},
          {{"train"}, 2, "lathe train CONFIG"},
          {{"train", "tiny.toml", "other.toml"}, 2, "other.toml"},
          {{"train", "tiny.toml", "--train.stesp=5"}, 2, "--train.steps?"},
          {{"train", "tiny.toml", "--train.steps=5", "--train.steps=6"}, 2, "2 times"},
          {{"train", "tiny.toml", "--train.steps=x"}, 2, "whole number, not \"x\""},
          {{"train", "tiny.toml", "--train.steps"}, 2, "--train.steps=..."},
          {{"train", "tiny.toml", "--model.bias", "maybe"}, 2, "true or false, not \"maybe\""},
          {{"train", "nowhere.toml"}, 2, "nowhere.toml"},
          {{"train", "data"}, 2, "--data.dir=data"},
          {{"config", "check", "."}, 2, ". is a folder"},
          {{"config", "check", "tiny.toml", "--memory.budget=lots"}, 2, "memory.budget: lots"},
          {{"runs", "--json", "2024runs"}, 2, "2024runs"},
          {{"bench", "generate", "tiny.toml", "--amp.dtype=bf16"}, 2, "[model] and [data]"},
          {{"bench", "generate", "tiny.toml", "--load-dtype=int8", "--double-quant"},
           2,
           "--load-dtype nf4"},
          {{"train", "tiny.toml", "--train.steps=1.5e0"}, 2, "whole number, not 1.5"},
          {{"train", "tiny.toml", "--train.steps=1e19"}, 2, "train.steps = 1e+19 is too large"},
          {{"train", "tiny.toml", "--train.steps=1e"}, 2, "whole number, not \"1e\""},
          {{"train", "tiny.toml", "--optim.lr=.1.2"}, 2, "number, not \".1.2\""},
          {{"train", "tiny.toml", "--optim.lr=1e999"}, 2, "number, not \"1e999\""},
          {{"train", "tiny.toml", "--model.n_embd=15"}, 2, "command line: model.n_embd = 15"},
          {{"train", "tiny.toml", "--data.dir=nowhere"}, 3, "`lathe prepare TEXT --out nowhere`"},
          {{"train", "tiny.toml", "--model.vocab_size=3"}, 2, "model.vocab_size = 3 is smaller"},
          {{"train", "tiny.toml", "--model.block_size=100000"}, 3, "windows of 100000"},
          {{"train", "tiny.toml", "--checkpoint.resume=nowhere"}, 4, "nowhere is neither"},
          {{"train", "tiny.toml", "--train.device=cuda"}, 2, "device cuda"},
          {{"generate", "runs/none"}, 4, "runs/none is neither"},
          {{"generate", "data", "--temperature=-1"}, 2, "--temperature = -1"},
          {{"generate", "data", "--tokens=1.5"}, 2, "whole number, not 1.5"},
          {{"generate", "data", "--tokens=1e3x"}, 2, "whole number, not 1e3x"},
          {{"generate", "none", "--tokens=1e3", "--temperature=.5", "--top-p=1.", "--seed=+3",
            "--top-k=1_0"},
           4,
           "none is neither"},
          {{"generate", "data", "--seed=9223372036854775807"}, 2, ">= 0, <= 9007199254740992"},
          {{"eval", "data"}, 4, "--data data"},
          {{"generate", "data/"}, 4, "data/ is a data folder"},
          {{"gradients", "data"}, 4, "data is a data folder"},
          {{"merge", "data", "--out", "new"}, 4, "data is a data folder"},
          {{"help", "trian"}, 2, "train?"},
          {{"help", "train", "eval"}, 2, "`lathe help train`"},
          {{"train", "tiny.toml", "--amp.tf32=true", "--train.device=cpu"}, 2, "NVIDIA"},
          {{"train", "tiny.toml", "--adapters.rank=4", "--adapters.base=nowhere"},
           4,
           "adapters.base: nowhere"},
          {{"eval", "data", "--load-dtype=int4"}, 2, "fp32, bf16, fp16, int8 or nf4"},
          {{"eval", "data", "--load-dtype=int8", "--double-quant=true"}, 2, "--load-dtype nf4"},
          {{"eval", "data", "--double-quant=1"}, 2, "true or false, not 1"},
          {{"merge", "data"}, 2, "--out"},
          {{"merge", "nowhere", "--out", "new"}, 4, "nowhere is neither"},
          {{"gradients", "nowhere"}, 4, "nowhere is neither"},
          {{"bench", "accumulation", "--powers=9"}, 2, "--powers = 9"},
          {{"prepare", "text.txt"}, 2, "--out"},
          {{"prepare", "nowhere.txt", "--out", "new"}, 3, "nowhere.txt"},
          {{"prepare", "text.txt", "--out", "new", "--tokenizer", "words"}, 2, "byte, char"},
          {{"prepare", "text.txt", "--out", "new", "--val", "1.5"}, 2, "--val = 1.5"},
          {{"prepare", "text.txt", "--out", "data"}, 2, "data already"},
          {{"inspect", "nowhere"}, 2, "nowhere does not exist"},
          {{"inspect", "text.txt"}, 2, "text.txt is not"},
          {{"verify", "nowhere"}, 2, "nowhere does not exist"},
          {{"bench", "nothing"}, 2, "`bench step`, `bench generate`, `bench ops`"},
          {{"bench", "ops", "--width", "100"}, 2, "multiple of 64, not 100"},
          {{"bench", "ops", "--train.threads=1"}, 2, "no --train.threads"},
          {{"bench", "peak", "--batch", "3"}, 2, "no --batch"},
          {{"config", "kernels", "tiny.toml"}, 2, "config kernels"},
          {{"bench", "step", "tiny.toml", "--dtype=bf16"}, 2, "no --dtype"},
          {{"train", "tiny.toml", "--data.dir=\xE9"}, 2, "UTF-8"},
          {{"generate", "data", "--prompt=" + std::string(100000, 'x')}, 4, "data folder"},
          {{"generate", "data", "--prompt=a\nb"}, 4, "data folder"},
          {{"config", "check"}, 2, "lathe config check"},
          {{"config", "check", "tiny.toml", "--train.batch_size=0"}, 2, "train.batch_size = 0"},
          {{"plan", "tiny.toml", "--data.dir=nowhere"}, 2, "model.vocab_size is 0"}});
}

TEST_CASE("bad data folders are refused with an exit code and one sentence", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const std::string manifest = slurp(f / "data/manifest.json");
  const auto folder = [&](const std::string& name) {
    fs::copy(f / "data", f / name);
    return f / name;
  };

  // These folders are copies of the data with a fault in a file.
  fs::resize_file(folder("cut") / "train.bin", 1000);
  fs::remove(folder("missing") / "train.bin");
  write_file(folder("torn") / "manifest.json", manifest.substr(0, 50));
  write_file(folder("foreign") / "manifest.json", "{\"format\": \"other\"}");
  write_file(folder("number") / "manifest.json", "{\"kind\": 5}");
  write_file(folder("list") / "manifest.json", "[1]");
  const fs::path ids = folder("ids");
  std::string bytes = slurp(ids / "train.bin");
  std::fill(bytes.begin(), bytes.end(), '\xff');
  write_file(ids / "train.bin", bytes);

  // These folders have no manifest.
  fs::create_directories(f / "empty");
  fs::create_directories(f / "raw");
  write_file(f / "raw/train.bin", slurp(f / "data/train.bin"));
  fs::create_directories(f / "blank");
  write_file(f / "blank/train.bin", "");
  fs::create_directories(f / "huge");
  write_file(f / "huge/train.bin", "");
  fs::resize_file(f / "huge/train.bin", 100'000'001);

  const auto with = [](const std::string& dir) {
    return std::vector<std::string>{"train", "tiny.toml", "--data.dir=" + dir};
  };
  refuse(f, {{with("cut"), 3, "claims 18000"},
             {with("missing"), 3, "missing/train.bin"},
             {with("torn"), 3, "torn/manifest.json: parse error"},
             {with("foreign"), 3, "foreign/manifest.json: the format is \"other\""},
             {with("number"), 3, "number/manifest.json: the field \"kind\""},
             {with("list"), 3, "JSON object"},
             {with("ids"), 3, "is 65535"},
             {with("empty"), 3, "empty has no train"},
             {with("blank"), 3, "blank has no train"},
             {with("huge"), 3, "100000001 bytes"},
             {with("raw"), 2, "raw has no manifest.json"},
             {{"train", "tiny.toml", "--data.dir=raw", "--model.vocab_size=50"},
              3,
              "train.eval_interval = 0"}});
}

/// Runs a command that must succeed, and returns its standard output.
std::string output_of(const fs::path& folder, std::vector<std::string> args) {
  const Finished r =
      run({.binary = "lathe", .args = std::move(args), .folder = folder, .environment = {}});
  INFO(r.err);
  CHECK(r.code == 0);
  return r.out;
}

TEST_CASE("help and version are printed, in lines of limited length", "[cli]") {
  const TempFolder f;
  const auto out = [&](std::vector<std::string> args) {
    return output_of(f.path(), std::move(args));
  };

  const std::string all = out({"--help"});
  CHECK_THAT(all, ContainsSubstring("usage: lathe COMMAND"));
  CHECK_THAT(all, ContainsSubstring("\n  lathe train configs/quickstart.toml"));  // an example
  CHECK(out({"help"}) == all);
  std::istringstream all_lines(all);
  for (std::string line; std::getline(all_lines, line);) CHECK(line.size() <= 80);

  CHECK(run({.binary = "lathe", .args = {}, .folder = f.path(), .environment = {}}).code == 2);
  CHECK_THAT(out({"--version"}), ContainsSubstring("lathe 0."));
  CHECK_THAT(out({"generate", "-h"}), ContainsSubstring("--top-p"));
  CHECK(out({"launch", "-n", "2", "--", "train", "--help"}) == out({"train", "--help"}));
  CHECK(out({"launch", "-n", "2", "--", "--help"}) == all);

  for (const Command& command : commands()) {
    INFO(command.name);
    CHECK_THAT(all, ContainsSubstring(std::string("\n  ") + command.name + " "));
    const std::string help = out({command.name, "--help"});
    if (command.name < "f")
      CHECK(out({"help", command.name}) == help);  // only for some: a start takes 0.25 s
    CHECK_THAT(help, ContainsSubstring(std::string("usage: lathe ") + command.name));
    CHECK_THAT(help, ContainsSubstring(std::string("\n  lathe ") + command.name));  // an example
    for (const Flag& flag : command.flags)
      CHECK_THAT(help, ContainsSubstring("\n  " + flag.typed() + " "));
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) CHECK((line.size() <= 100 || line == ""));
  }
}

TEST_CASE("the help of train has sections, with a line for each key", "[cli]") {
  const std::string help = output_of(fs::temp_directory_path(), {"train", "--help"});
  CHECK(std::count(help.begin(), help.end(), '\n') < 600);
  for (const Section& section : RunConfig::schema("gpt").sections())
    CHECK_THAT(help, ContainsSubstring("\n[" + section.name + "] " + section.doc + "\n"));
  for (const Field& field : RunConfig::schema("gpt").fields())
    CHECK_THAT(help, ContainsSubstring("\n  --" + field.key + "="));
  CHECK_THAT(help, ContainsSubstring("`lathe config docs`"));
  CHECK_THAT(output_of(fs::temp_directory_path(), {"plan", "--help"}),
             ContainsSubstring("`lathe train --help`"));
}

TEST_CASE("paths that are not UTF-8 are refused before anything is created", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  fs::copy_file(f / "tiny.toml", f / "tin\xE9.toml");
  refuse(f, {{{"train", "tin\xE9.toml"}, 2, "tin\\xe9.toml is not UTF-8"},
             {{"train", "tin\xE9.toml", "--train.out_dir=runs/x"}, 2, "tin\\xe9.toml is not UTF-8"},
             {{"train", "tiny.toml", "--train.out_dir=\xE9"}, 2, "UTF-8"}});
  write_file(f / "null.toml", slurp(f / "tiny.toml") + "\n[memory]\noffload_dir = \"a\\u0000b\"\n");
  refuse(f, {{{"train", "null.toml"}, 2, "null characters"}});
  const fs::path inside = f / "fold\xE9r";
  fs::create_directories(inside);
  const Finished r = run({.binary = "lathe",
                          .args = {"train", "../tiny.toml", "--data.dir=../data"},
                          .folder = inside,
                          .environment = {}});
  CHECK(r.code == 2);
  CHECK_THAT(r.err,
             ContainsSubstring("working folder") && ContainsSubstring("fold\\xe9r is not UTF-8"));
  CHECK(fs::is_empty(inside));
}

TEST_CASE("JSON output has U+FFFD for bytes of paths that are not UTF-8", "[cli]") {
  const TempFolder f;
  for (const char* name : {"runs/\xE9t\xE9", "runs/b"}) {
    fs::create_directories(f / name);
    write_file(f / name / "metrics.jsonl", "{\"step\":3,\"loss\":2.5,\"tokens\":4,\"time\":1}\n");
  }
  const Finished listed = lathe_in(f, {"runs", "--json"});
  REQUIRE(listed.code == 0);
  const Json runs = parse_json(listed.out, "runs", Exit::internal);
  REQUIRE(runs.size() == 2);
  CHECK(runs[1]["run"] == "runs/\xEF\xBF\xBDt\xEF\xBF\xBD");

  const Finished compared = lathe_in(f, {"compare", "runs/b", "runs/\xE9t\xE9", "--json"});
  REQUIRE(compared.code == 0);
  CHECK(parse_json(compared.out, "compare", Exit::internal)["runs"][1] == runs[1]["run"]);
}

TEST_CASE("a file that may not be read or written is reported with a remedy", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  // Root may read all files unless it drops its capabilities.
  const bool root = geteuid() == 0;
  if (root && !fs::exists("/usr/bin/setpriv")) {
    WARN("skipped: there is no setpriv");
    return;
  }

  const auto refused = [&](std::vector<std::string> args, const std::string& text) {
    if (root)
      args.insert(args.begin(), {"--bounding-set=-all", (binary_folder() / "lathe").string()});
    const Finished r = run({.binary = root ? "/usr/bin/setpriv" : "lathe",
                            .args = std::move(args),
                            .folder = f.path(),
                            .environment = {}});
    INFO(r.err);
    CHECK((r.code >= 2 && r.code <= 6));
    CHECK_THAT(r.err, ContainsSubstring(text) && ContainsSubstring("permissions"));
    CHECK_THAT(r.err, !ContainsSubstring("filesystem error"));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
  };

  const auto copy = [&](const char* name) {
    fs::copy(f / "data", f / name);
    return f / name;
  };
  const fs::path closed = copy("closed"), open = copy("raw");
  for (const char* name : {"manifest.json", "train.bin"}) fs::remove(open / name);
  fs::permissions(closed, fs::perms::none);
  fs::permissions(open, fs::perms::owner_exec);

  const std::string denied = ": Permission denied";
  refused({"train", "tiny.toml", "--data.dir=closed"}, "closed/manifest.json" + denied);
  refused({"inspect", "closed"}, "closed/config.json" + denied);
  refused({"eval", "closed/run"}, "closed/run" + denied);
  refused({"train", "closed/tiny.toml"}, "closed/tiny.toml" + denied);
  refused({"train", "tiny.toml", "--train.out_dir=closed/run"}, "closed/run" + denied);
  refused({"train", "tiny.toml", "--data.dir=raw", "--model.vocab_size=50"}, "raw" + denied);

  const fs::path bins = copy("bins");
  fs::permissions(bins / "train.bin", fs::perms::none);
  refused({"train", "tiny.toml", "--data.dir=bins"}, "bins/train.bin" + denied);
  for (const auto& folder : {closed, open}) fs::permissions(folder, fs::perms::owner_all);
}

TEST_CASE("an error names what was given instead of a config or a run", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  output_of(f.path(), {"train", "tiny.toml", "--train.steps=1", "--train.eval_interval=0"});

  refuse(
      f,
      {{{"train", "runs/tiny"}, 2, "lathe train runs/tiny/config.toml"},
       {{"train", "runs/tiny/checkpoints/step-00000001"},
        2,
        "--checkpoint.resume=runs/tiny/checkpoints/step-00000001"},
       {{"config", "check", "data"}, 2, "--data.dir=data"},
       {{"train", "tiny.toml", "--train.out_dir=data"}, 2, "train.out_dir: data is taken"},
       {{"train", "tiny.toml", "--checkpoint.resume=nope"}, 4, "nope is neither"},
       {{"train", "tiny.toml", "--train.out_dir=tiny.toml"}, 2, "by a file"},
       {{"prepare", "tiny.toml", "--out", "runs/tiny"}, 2, "by a run"},
       {{"sweep", "tiny.toml", "--optim.lr=1e-3,2e-3", "--out", "runs/tiny"}, 2, "by a run"},
       {{"sweep", "tiny.toml", "--optim.lr=1e-3,2e-3", "--out", "data"}, 2, "by prepared data"},
       {{"sweep", "tiny.toml", "--optim.lr=1e-3,2e-3", "--train.max_time=1"}, 2, "train.max_time"},
       {{"sweep", "tiny.toml", "--optim.lr=1e-3,2e-3", "--seed", "2"}, 2, "--seed"},
       {{"launch", "-n", "2", "-n", "3", "--", "train", "tiny.toml"}, 2, "-n is given 2"},
       {{"eval", "tiny.toml"}, 4, "tiny.toml is a file"}});
}

TEST_CASE("text is generated with a vocabulary that has no line break", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  std::string text = sample_text(20000);
  std::replace(text.begin(), text.end(), '\n', '.');
  write_file(f / "one.txt", text);
  output_of(f.path(), {"prepare", "one.txt", "--out", "one", "--tokenizer", "char"});
  const auto written = [&](const std::string& data) {
    output_of(f.path(), {"train", "tiny.toml", "--train.steps=1", "--train.eval_interval=0",
                         "--data.dir=" + data, "--train.out_dir=" + data + "-run"});
    return output_of(f.path(), {"generate", data + "-run", "--tokens=2"});
  };
  CHECK_THAT(written("data"), Catch::Matchers::StartsWith("\n"));
  const std::string without = written("one");
  CHECK_THAT(without, Catch::Matchers::StartsWith(" "));  // the vocabulary's first character
  CHECK(without.size() == 4);                             // then two characters and a line break
}

TEST_CASE("a command that can't start a thread prints an error and does not hang", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml"}).code == 0);
  const auto with_threads = [&](int most, std::vector<std::string> words) {
    return run({.binary = "lathe_faults",
                .args = std::move(words),
                .folder = f.path(),
                .environment = {{"LATHE_TEST_THREADS", std::to_string(most)}}});
  };
  if (with_threads(1, {"--version"}).code == 77) {
    WARN("skipped: this process can't give up the right to any number of threads");
    return;
  }

  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"train", "tiny.toml", "--train.threads=2", "--train.out_dir=new", "--data.workers=0"},
           {"train", "tiny.toml",
            "--train.out_dir=new"},  // one thread, and two workers that read data
           {"plan", "tiny.toml", "--train.threads=2"},
           {"profile", "tiny.toml", "--train.threads=2"},
           {"find", "lr", "tiny.toml", "--train.threads=2"},
           {"bench", "step", "tiny.toml", "--train.threads=2"},
           {"bench", "peak", "--threads=2"},
           {"eval", "runs/tiny", "--threads=2"},
           {"generate", "runs/tiny", "--threads=2"},
           {"gradients", "runs/tiny", "--threads=2"},
           {"tokenizer", "train", "text.txt", "--out", "bpe", "--vocab-size=300", "--threads=2"},
           {"sweep", "tiny.toml", "--train.seed=1,2", "--out", "sweep"}}) {
    const Finished refused = with_threads(1, words);
    INFO(words[0] << " " << words[1] << "\n" << refused.out << refused.err);
    CHECK(refused.code == 9);
    CHECK_THAT(refused.err, ContainsSubstring("ulimit -u"));
    CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
  }

  // Commands work if they stay within the limit. With --threads=2, ATen starts two threads besides
  // the main thread, so the limit must be at least 3.
  CHECK(with_threads(1, {"eval", "runs/tiny", "--threads=1"}).code == 0);
  CHECK(with_threads(1, {"export", "runs/tiny", "--out", "exported"}).code == 0);
  CHECK(with_threads(1, {"train", "tiny.toml", "--train.out_dir=new", "--data.workers=0"}).code ==
        0);
  CHECK(with_threads(3, {"eval", "runs/tiny", "--threads=2"}).code == 0);
  CHECK(with_threads(2, {"eval", "runs/tiny", "--threads=2"}).code == 9);
}

TEST_CASE("more threads than a machine can use are refused", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.steps=2"}).code == 0);
  using Environment = std::map<std::string, std::string>;
  for (const auto& [words, environment] :
       std::vector<std::pair<std::vector<std::string>, Environment>>{
           {{"eval", "runs/tiny", "--threads=4096"}, {}},
           {{"generate", "runs/tiny", "--threads=4096"}, {}},
           {{"train", "tiny.toml", "--train.threads=4096", "--train.out_dir=new"}, {}},
           {{"eval", "runs/tiny"}, {{"OMP_NUM_THREADS", "100000"}}},
           {{"train", "tiny.toml", "--train.threads=0", "--train.out_dir=new"},
            {{"OMP_NUM_THREADS", "100000"}}},
           {{"tokenizer", "train", "text.txt", "--out", "bpe", "--threads=1024"}, {}},
           {{"prepare", "text.txt", "--out", "more", "--dedup", "--workers=1024"}, {}},
           {{"prepare", "text.txt", "--out", "more", "--dedup"}, {{"OMP_NUM_THREADS", "100000"}}},
       }) {
    const Finished refused =
        run({.binary = "lathe", .args = words, .folder = f.path(), .environment = environment});
    INFO(words[0] << "\n" << refused.out << refused.err);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err,
               ContainsSubstring("too many") && ContainsSubstring("LATHE_MAX_THREADS="));
    CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
  }
  for (const std::string made : {"new", "bpe", "more"}) CHECK(!fs::exists(f / made));

  // An environment variable allows more threads.
  const int many = std::max(64, 2 * default_threads()) + 1;
  const std::vector<std::string> train{"train", "tiny.toml", "--train.steps=1",
                                       "--train.out_dir=many",
                                       "--train.threads=" + std::to_string(many)};
  const auto trained = [&](const std::map<std::string, std::string>& environment) {
    return run({.binary = "lathe", .args = train, .folder = f.path(), .environment = environment});
  };
  CHECK(trained({}).code == 2);
  CHECK(trained({{"LATHE_MAX_THREADS", std::to_string(many)}}).code == 0);
}

TEST_CASE("an invalid LATHE_ISA is refused before any command runs", "[cli]") {
  const TempFolder f;
  const std::vector<std::vector<std::string>> some{
      {"bench", "peak"}, {"inspect", "."}, {"config", "kernels"}};
  for (const auto& args : some) {
    const Finished r = run({.binary = "lathe",
                            .args = args,
                            .folder = f.path(),
                            .environment = {{"LATHE_ISA", "sse9"}}});
    CHECK(r.code == 2);
    CHECK_THAT(r.err, ContainsSubstring("LATHE_ISA=sse9") && ContainsSubstring("baseline, avx2"));
  }
}

TEST_CASE("token shards of other trainers can be trained on, inspected and verified", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const std::string train = slurp(f / "data/train.bin"), val = slurp(f / "data/val.bin");
  const auto with_header = [](const std::string& body) {  // adds llm.c's header
    int32_t words[256]{20240520, 1, static_cast<int32_t>(body.size() / 2)};
    return std::string(reinterpret_cast<const char*>(words), sizeof words) + body;
  };
  for (const char* name : {"llmc", "nano", "two"}) fs::create_directories(f / name);
  write_file(f / "llmc/fineweb_train_000002.bin", with_header(train.substr(20000)));
  write_file(f / "llmc/fineweb_train_000001.bin", with_header(train.substr(0, 20000)));
  write_file(f / "llmc/fineweb_val_000000.bin", with_header(val));
  write_file(f / "nano/train.bin", train);
  write_file(f / "nano/val.bin", val);
  write_file(f / "nano/meta.pkl", "\x80\x04");
  for (const std::string folder : {"llmc", "nano"}) {
    output_of(f.path(), {"train", "tiny.toml", "--data.dir=" + folder, "--model.vocab_size=20",
                         "--train.steps=2", "--train.out_dir=runs/" + folder});
    CHECK(difference(f / "runs/llmc", f / "runs" / folder) ==
          "");  // both have the same tokens in the same order
  }
  const std::string llmc = output_of(f.path(), {"inspect", "llmc"}),
                    nano = output_of(f.path(), {"inspect", "nano"});
  CHECK_THAT(llmc, ContainsSubstring("no manifest.json"));
  CHECK_THAT(llmc,
             ContainsSubstring("fineweb_train_000001.bin  10000 tokens  uint16, llm.c's header"));
  CHECK_THAT(llmc, ContainsSubstring("fineweb_val_000000.bin  "));
  CHECK_THAT(nano, ContainsSubstring("train.bin  18000 tokens  uint16, no header"));
  CHECK_THAT(nano, !ContainsSubstring("meta.pkl"));
  CHECK_THAT(output_of(f.path(), {"verify", "llmc"}), ContainsSubstring("token id is 1"));
  CHECK_THAT(output_of(f.path(), {"verify", "nano"}), ContainsSubstring("no checksums"));

  write_file(f / "llmc/fineweb_train_000002.bin", with_header(train.substr(20000)).substr(0, 5000));
  write_file(f / "two/a_train_0.bin", train);
  write_file(f / "two/b_train_0.bin", train);
  refuse(f, {{{"verify", "llmc"}, 3, "1988"},
             {{"inspect", "llmc"}, 3, "fineweb_train_000002.bin: its header claims 8000"},
             {{"verify", "two"}, 3, "(a_train_0.bin, b_train_0.bin)"}});
}

/// Runs ./dev with this build's binary, and skips the set-up and the build.
Finished dev(const TempFolder& f, std::vector<std::string> args) {
  fs::create_directories(f / "stand-ins");
  for (const char* tool : {"cmake", "ninja"}) {
    write_file(f / "stand-ins" / tool, "#!/bin/sh\necho ninja: no work to do.\n");
    fs::permissions(f / "stand-ins" / tool, fs::perms::owner_all);
  }
  fs::create_directories(f / "torch/lib");
  fs::create_directories(f / "torch/include/ATen/ops");
  write_file(f / "torch/lib/libtorch_cpu.so", "");
  write_file(f / "torch/include/ATen/ops/text.h", sample_text(20000));
  return run({.binary = source_folder() / "dev",
              .args = std::move(args),
              .folder = f.path(),
              .environment = {{"PATH", (f / "stand-ins").string() + ":" + getenv("PATH")},
                              {"LATHE_PACKAGES", "skip"},
                              {"LIBTORCH", "torch"},
                              {"LATHE_BUILD", binary_folder().string()}}});
}

TEST_CASE("./dev works in the folder that it is called from", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Finished shown = dev(f, {"lathe", "config", "check", "tiny.toml"});
  INFO(shown.err);
  CHECK(shown.code == 0);
  CHECK_THAT(shown.out, ContainsSubstring("tiny.toml: fine"));
  // ./dev finds the config among the other arguments. It creates the quickstart's data where the
  // config expects them.
  const Finished r =
      dev(f, {"train", "--train.steps=1", "--schedule.warmup_steps=0", "--train.eval_interval", "0",
              "tiny.toml", "--data.dir=data/quickstart", "--log.level", "info"});
  INFO(r.err);
  CHECK(r.code == 0);
  CHECK(r.err == "");
  CHECK(fs::exists(f / "data/quickstart/manifest.json"));
  CHECK(fs::exists(f / "runs/tiny/checkpoints/step-00000001"));
}

TEST_CASE("plan --chart draws the memory of two settings by category", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "tiny.toml"});
    return run({.binary = "lathe", .args = more, .folder = f.path(), .environment = {}});
  };
  const Finished r = plan({"--model.n_embd=1024", "--chart", "optim.kind=sgd,train.batch_size=64"});
  INFO(r.out << r.err);
  REQUIRE(r.code == 0);
  CHECK(r.out.starts_with("#  tiny.toml\n=  with optim.kind=sgd,train.batch_size=64\n\n"));
  std::map<std::string, std::vector<std::string>> bars;  // bars by category
  std::string category;
  std::istringstream lines(r.out.substr(r.out.find("\n\n") + 2));
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.size() <= 80);
    if (line[0] != ' ') category = line.substr(0, line.find(' '));
    const size_t begin = line.find_first_of("#=");
    const size_t end = begin == std::string::npos ? begin : line.find(' ', begin);
    bars[category].push_back(begin == std::string::npos ? "" : line.substr(begin, end - begin));
  }
  // SGD has almost no state, and a larger batch has more activations.
  CHECK(bars.at("optimizer")[0].size() > 5);
  CHECK(bars.at("optimizer")[1] == "=");
  CHECK(bars.at("activations")[1].size() > bars.at("activations")[0].size());
  CHECK(bars.at("program")[0].size() == bars.at("program")[1].size());

  for (const auto& [keys, says] : std::vector<std::pair<std::string, std::string>>{
           {"sgd", "memory.recompute=blocks"}, {"optim.kid=sgd", "optim.kid"}}) {
    const Finished refused = plan({"--chart", keys});
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, ContainsSubstring(says));
  }
  const Finished both = plan({"--chart", "optim.kind=sgd", "--json"});
  CHECK(both.code == 2);
  CHECK_THAT(both.err, ContainsSubstring("--chart") && ContainsSubstring("--json"));
}

TEST_CASE("a plan prints parameters, memory, FLOPs, time and disk", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Finished r = run(
      {.binary = "lathe", .args = {"plan", "tiny.toml"}, .folder = f.path(), .environment = {}});
  INFO(r.err);
  CHECK(r.code == 0);
  for (const char* word :
       {"parameters", "memory: optimizer", "FLOPs a step", "time of a step", "disk"})
    CHECK_THAT(r.out, ContainsSubstring(word));
  CHECK(!fs::exists(f / "runs"));
}

TEST_CASE("bench step prints its measurements and creates no run", "[cli]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const Finished r = run({.binary = "lathe",
                          .args = {"bench", "step", "tiny.toml", "--train.steps=6", "--skip", "2"},
                          .folder = f.path(),
                          .environment = {}});
  CHECK(r.code == 0);
  for (const char* key :
       {"ms_median", "ms_min", "tokens_per_s", "first_step_s", "peak_rss_mb", "final_loss"})
    CHECK_THAT(r.out, ContainsSubstring(key));
  CHECK(!fs::exists(f / "runs"));
}

}  // namespace
