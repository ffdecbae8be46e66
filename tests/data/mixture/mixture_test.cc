// Tests of mixtures of token data: the source of each window, preparation, and runs.
#include <cmath>

#include "core/io/claimed_folder.h"
#include "core/io/json.h"
#include "data/data.h"
#include "data/loader.h"
#include "data/mixture/mixture_manifest.h"
#include "data/tokens/sampler.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("in every 65536 windows, each source has exactly its share, and no window occurs twice",
          "[mixture]") {
  const std::vector<double> weights{5, 0.00001, 3, 2};
  const MixtureSampler sampler(weights, 7), other(weights, 8);
  std::vector<int64_t> next(4, 0);
  int64_t differ = 0;
  for (int64_t round = 0; round < 2; ++round) {
    std::vector<int64_t> count(4, 0);
    std::vector<bool> seen[4];
    for (int64_t i = 0; i < 65536; ++i) {
      const auto [source, index] = sampler(round * 65536 + i);
      differ += other(round * 65536 + i).source != source;
      ++count.at(source);
      const int64_t here = index - next[source];
      REQUIRE(here >= 0);
      if (seen[source].size() <= static_cast<size_t>(here))
        seen[source].resize(static_cast<size_t>(here) + 1, false);
      REQUIRE(!seen[source][static_cast<size_t>(here)]);
      seen[source][static_cast<size_t>(here)] = true;
    }
    CHECK(count == std::vector<int64_t>{32767, 1, 19661, 13107});
    for (size_t s = 0; s < 4; ++s) {  // no window is left out
      CHECK(std::ssize(seen[s]) == count[s]);
      next[s] += count[s];
    }
  }
  CHECK(differ > 60000);

  // Rounding of shares adds windows to the largest source, or removes windows from it, wherever the
  // source is in the list.
  const auto counts = [](const std::vector<double>& shares) {
    const MixtureSampler drawn(shares, 7);
    std::vector<int64_t> count(shares.size(), 0);
    for (int64_t i = 0; i < 65536; ++i) ++count.at(drawn(i).source);
    return count;
  };
  CHECK(counts({2, 5, 0.00001, 3}) == std::vector<int64_t>{13107, 32767, 1, 19661});
  CHECK(counts({1, 1, 1.0001}) == std::vector<int64_t>{21845, 21845, 21846});

  // A round has 65536 windows. The shares in a part of a round differ from the shares of the round
  // by less than 3 standard deviations of independent draws.
  int64_t first = 0;
  for (int64_t i = 1000; i < 3000; ++i) first += sampler(i).source == 0;
  CHECK(std::abs(first - 1000) < 3 * std::sqrt(2000 * 0.25));
}

/// Prepares a mixture in `mix`. Each source has a different letter, so that windows show their
/// source. The training part of "cc" is half c and half d.
void prepare_mixture(const TempFolder& f) {
  for (const char* name : {"aa", "bb"}) write_file(f / name, std::string(4000, name[0]));
  write_file(f / "cc", std::string(16000, 'c') + std::string(16000, 'd') + std::string(8000, 'c'));
  const Finished done = lathe_in(f, {"prepare", "--out", "mix", "--val", "0.2", "--source",
                                     "aa=aa:3", "--source", "bb=bb:1", "--source", "cc=cc:0.5"});
  INFO(done.err);
  REQUIRE(done.code == 0);
}

TEST_CASE("windows of a mixture are drawn in proportion to its shares, which data.mix can change",
          "[mixture]") {
  const TempFolder f(fast_folder());
  prepare_mixture(f);
  DataConfig c;
  c.dir = (f / "mix").string();
  const auto letters = [&](int64_t windows) {
    std::map<char, int64_t> all;
    for (const Batch& b :
         draw_batches(*open_data(c), {.batch_size = 8, .block_size = 16, .vocab_size = 256}, 3, 0,
                      windows / 8, at::kCPU)) {
      for (int64_t row = 0; row < 8; ++row)
        ++all[static_cast<char>(b.inputs[row][0].item<int64_t>())];
    }
    return all;
  };
  // Counts are binomial: for 4000 windows, three standard deviations are at most 2.4% of them.
  const auto near = [](int64_t count, double share) {
    return std::abs(static_cast<double>(count) / 4000 - share) < 0.024;
  };
  auto all = letters(4000);
  CHECK(
      (near(all['a'], 3 / 4.5) && near(all['b'], 1 / 4.5) && near(all['c'] + all['d'], 0.5 / 4.5)));
  const std::string hash = open_data(c)->hash();
  CHECK(open_data(c)->matches(hash));
  c.mix = "bb:1,cc:3";
  all = letters(4000);
  CHECK((all['a'] == 0 && near(all['b'], 0.25) && near(all['c'], 0.375) && near(all['d'], 0.375)));
  CHECK(!open_data(c)->matches(hash));
  c.mix = "aa:3,bb:1,cc:0.6";
  CHECK(!open_data(c)->matches(hash));
  // Evaluation scores every token of each source once, and batches name their source.
  c.mix = "";
  const auto data = open_data(c);
  std::map<std::string, int64_t> scored;
  const auto windows =
      data->evaluation({.batch_size = 4, .block_size = 16, .vocab_size = 256}, 0, at::kCPU);
  for (Batch b; windows->next(b);) {
    CHECK((b.inputs == b.source[0]).all().item<bool>());  // "cc" ends with c
    scored[b.source] += b.targets.numel();
  }
  CHECK(scored == std::map<std::string, int64_t>{{"aa", 799}, {"bb", 799}, {"cc", 7999}});
  CHECK(data->val_size() == 9600);
  // A partial evaluation has windows in proportion to the tokens of the sources, and each batch has
  // one source.
  scored.clear();
  const auto part =
      data->evaluation({.batch_size = 4, .block_size = 16, .vocab_size = 256}, 15, at::kCPU);
  for (Batch b; part->next(b);) {
    CHECK((b.inputs == b.source[0]).all().item<bool>());
    scored[b.source] += b.targets.size(0);
  }
  // The sample has 60 of 597 windows. In proportion, these are 4.9 windows of aa, 4.9 of bb and
  // 50.2 of cc.
  CHECK(scored["aa"] + scored["bb"] + scored["cc"] == 60);
  CHECK((std::abs(scored["aa"] - 5) <= 1 && std::abs(scored["bb"] - 5) <= 1));
  data->verify();

  const auto refusal = [&](const std::string& mix) {
    c.mix = mix;
    return error_of([&] { open_data(c); });
  };
  CHECK_THAT(refusal("aa:1,dd:2"), ContainsSubstring("data.mix") && ContainsSubstring("dd") &&
                                       ContainsSubstring(c.dir) && ContainsSubstring("aa, bb, cc"));
  CHECK_THAT(refusal("aa"), ContainsSubstring("data.mix = \"aa\"") && ContainsSubstring("weight"));
  CHECK_THAT(refusal("aa:x"),
             ContainsSubstring("data.mix = \"aa:x\"") && ContainsSubstring("weight"));
  CHECK_THAT(refusal("aa:0"), ContainsSubstring("data.mix") && ContainsSubstring("share of aa") &&
                                  ContainsSubstring("not 0"));
  CHECK_THAT(refusal("aa:1e308"), ContainsSubstring("data.mix") &&
                                      ContainsSubstring("share of aa") &&
                                      ContainsSubstring("1e100"));
  CHECK_THAT(refusal("aa:1,aa:2"), ContainsSubstring("source aa") && ContainsSubstring("twice"));
  c.dir = (f / "mix" / "aa").string();
  CHECK_THAT(refusal("aa:1"), ContainsSubstring("data.mix") && ContainsSubstring("--source") &&
                                  ContainsSubstring(c.dir));
  CHECK_THAT(error_of([] { read_mixture_manifest(Json{{"format", 5}}, "manifest.json"); }),
             ContainsSubstring("manifest.json") && ContainsSubstring("format") &&
                 ContainsSubstring("`lathe prepare`"));
}

TEST_CASE(
    "an interrupted preparation of a mixture keeps finished sources, and bad sources are refused",
    "[mixture]") {
  const TempFolder f(fast_folder());
  prepare_mixture(f);
  const auto prepare = [&](const std::string& out, std::vector<std::string> more) {
    std::vector<std::string> args{"prepare", "--out", out, "--val", "0.2"};
    args.insert(args.end(), more.begin(), more.end());
    return lathe_in(f, args);
  };
  CHECK_THAT(prepare("mix", {"--source", "aa=aa:3"}).err, ContainsSubstring("mix") &&
                                                              ContainsSubstring("holds data") &&
                                                              ContainsSubstring("--out"));
  {
    const ClaimedFolder other(f / "busy", "");
    write_file(f / "busy/.unfinished-mixture", "of the other");
    const Finished busy = prepare("busy", {"--source", "aa=aa:3"});
    CHECK(busy.code == 8);
    CHECK_THAT(busy.err, ContainsSubstring("busy") && ContainsSubstring("`lathe prepare`"));
    CHECK((names(f / "busy") ==
           std::set<std::string>{ClaimedFolder::lock_name, ".unfinished-mixture"}));
  }
  CHECK(prepare("new/er", {"--source", "aa=nothing.txt:3"}).code == 3);
  CHECK(!fs::exists(f / "new"));

  const std::vector<std::string> sources{"--source", "aa=aa:3", "--source", "bb=bb.jsonl:1"};
  write_file(f / "bb.jsonl", "{\"text\": 3}\n");
  CHECK_THAT(prepare("two", sources).err,
             ContainsSubstring("bb.jsonl:1") && ContainsSubstring("\"text\""));
  const std::string made = slurp(f / "two/aa/train.bin");
  CHECK(!made.empty());
  write_file(f / "bb.jsonl", "{\"text\": \"lathe\"}\n");
  CHECK_THAT(prepare("two", {"--source", "aa=aa:2", "--source", "bb=bb.jsonl:1"}).err,
             ContainsSubstring("two/aa") && ContainsSubstring("another command"));
  const Finished done = prepare("two", sources);
  INFO(done.err);
  CHECK(done.code == 0);
  CHECK_THAT(done.out + done.err, ContainsSubstring("two/aa") && ContainsSubstring("already"));
  CHECK(slurp(f / "two/aa/train.bin") == made);
  CHECK(names(f / "two") == std::set<std::string>{"aa", "bb", "manifest.json"});
  write_file(f / "none.jsonl", "x\n");
  CHECK_THAT(prepare("three", {"--source", "none=none.jsonl", "--source", "aa=aa"}).err,
             ContainsSubstring("none.jsonl:1") && ContainsSubstring("JSON"));
  CHECK(!fs::exists(f / "three"));
  const auto refusal = [&](const std::vector<std::string>& more, Exit code = Exit::usage) {
    const Finished refused = prepare("other", more);
    CHECK(refused.code == static_cast<int>(code));
    CHECK(!fs::exists(f / "other"));
    return refused.err;
  };
  CHECK_THAT(refusal({"--source", "aa"}),
             ContainsSubstring("--source aa") && ContainsSubstring("NAME=PATH:SHARE"));
  CHECK_THAT(refusal({"--source", "a/b=aa"}), ContainsSubstring("\"a/b\""));
  CHECK_THAT(refusal({"--source", "aa=aa:-1"}),
             ContainsSubstring("share of aa") && ContainsSubstring("not -1"));
  CHECK_THAT(refusal({"--source", "aa=nowhere:1"}, Exit::data),
             ContainsSubstring("nowhere") && ContainsSubstring("--source aa"));
  CHECK_THAT(refusal({"--source", "aa=aa", "bb"}),
             ContainsSubstring("command line: bb") && ContainsSubstring("--source"));
  CHECK_THAT(refusal({"--source", "aa=aa", "--tokenizer", "char"}),
             ContainsSubstring("--tokenizer char"));
  CHECK_THAT(refusal({}), ContainsSubstring("--source NAME=PATH:SHARE"));
}

TEST_CASE("an option of a mixture applies to the sources that can use it", "[mixture]") {
  const TempFolder f(fast_folder());
  write_file(f / "web.jsonl", "{\"body\": \"one two\"}\n{\"body\": \"three\"}\n");
  write_file(f / "plays.txt", "four\n--\nfive \xFF");
  const auto prepared = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words{"prepare",  "--out",         out,        "--val",          "0",
                                   "--source", "web=web.jsonl", "--source", "plays=plays.txt"};
    words.insert(words.end(), more.begin(), more.end());
    return lathe_in(f, words);
  };
  const Finished both =
      prepared("both", {"--field", "body", "--separator", "--\n", "--invalid", "repair"});
  INFO(both.err);
  CHECK(both.code == 0);
  CHECK(fs::exists(f / "both/manifest.json"));

  // An option that applies to no source is refused before a source is prepared.
  write_file(f / "plays.txt", "four");
  fs::rename(f / "web.jsonl", f / "web.txt");
  const Finished none = lathe_in(f, {"prepare", "--out", "none", "--source", "web=web.txt",
                                     "--source", "plays=plays.txt", "--field", "body"});
  CHECK(none.code == 2);
  CHECK_THAT(none.err, ContainsSubstring("--field"));
  CHECK(!fs::exists(f / "none/web/manifest.json"));
}

TEST_CASE("continuing a killed preparation notices changes of the input and the tokenizer",
          "[mixture]") {
  const TempFolder f(fast_folder());
  fs::create_directories(f / "aa");
  write_file(f / "aa/1.txt", std::string(4000, 'a'));
  write_file(f / "bb", std::string(4000, 'b'));
  write_file(f / "tokenizer.txt", sample_text(20000));
  REQUIRE(
      lathe_in(f, {"tokenizer", "train", "tokenizer.txt", "--out", "bpe", "--vocab-size", "300"})
          .code == 0);
  REQUIRE(
      lathe_in(f, {"tokenizer", "train", "tokenizer.txt", "--out", "other", "--vocab-size", "290"})
          .code == 0);
  const auto prepare = [&](const std::string& out, bool killed) {
    const std::vector<std::string> args{"prepare",  "--out",   out,        "--tokenizer", "bpe",
                                        "--source", "aa=aa:3", "--source", "bb=bb"};
    return run({.binary = killed ? "lathe_faults" : "lathe",
                .args = args,
                .folder = f.path(),
                .environment = {{"LATHE_TEST_KILL", killed ? "prepare: renamed 1" : "none 1"}}});
  };
  REQUIRE(prepare("whole", false).code == 0);

  const std::string tokenizer = slurp(f / "bpe/tokenizer.json");
  const auto restore = [&] {
    write_file(f / "aa/1.txt", std::string(4000, 'a'));
    fs::remove(f / "aa/2.txt");
    write_file(f / "bpe/tokenizer.json", tokenizer);
  };
  struct Change {
    const char* what;
    std::function<void()> make;
    int code;
    const char* fact;
  };
  const std::vector<Change> changes{
      {"the same length", [&] { write_file(f / "aa/1.txt", std::string(3999, 'a') + "A"); }, 3,
       "remove out/aa "},
      {"longer", [&] { write_file(f / "aa/1.txt", std::string(5000, 'a')); }, 3, "remove out/aa "},
      {"another file", [&] { write_file(f / "aa/2.txt", "more"); }, 3, "remove out/aa "},
      {"the tokenizer",
       [&] {
         fs::copy_file(f / "other/tokenizer.json", f / "bpe/tokenizer.json",
                       fs::copy_options::overwrite_existing);
       },
       2, "out/aa already"}};
  for (const Change& change : changes) {
    INFO(change.what);
    fs::remove_all(f / "out");
    REQUIRE(prepare("out", true).code == 128 + 9);
    REQUIRE(fs::exists(f / "out/aa/manifest.json"));
    change.make();
    const Finished refused = prepare("out", false);
    CHECK(refused.code == change.code);
    CHECK_THAT(refused.err, ContainsSubstring(change.fact));
    CHECK(!fs::exists(f / "out/manifest.json"));
    restore();
    const Finished done = prepare("out", false);
    CHECK(done.code == 0);
    CHECK_THAT(done.out + done.err, ContainsSubstring("out/aa") && ContainsSubstring("already"));
    CHECK(slurp(f / "out/aa/train.bin") == slurp(f / "whole/aa/train.bin"));
  }
  // A source whose folder was removed is prepared again from its current input.
  fs::remove_all(f / "out");
  REQUIRE(prepare("out", true).code == 128 + 9);
  write_file(f / "aa/1.txt", std::string(8000, 'a'));
  fs::remove_all(f / "out/aa");
  CHECK(prepare("out", false).code == 0);
  CHECK(fs::file_size(f / "out/aa/train.bin") != fs::file_size(f / "whole/aa/train.bin"));
}

TEST_CASE("a resumed run on a mixture is bitwise exact, and reports the loss of each source",
          "[mixture]") {
  const TempFolder f(fast_folder());
  make_tiny_run(f.path());
  prepare_mixture(f);
  const auto train = [&](const std::string& out, std::vector<std::string> more, int code = 0) {
    std::vector<std::string> args{"train", "tiny.toml", "--data.dir=mix", "--train.out_dir=" + out};
    args.insert(args.end(), more.begin(), more.end());
    const Finished done = lathe_in(f, args);
    INFO(done.err);
    CHECK(done.code == code);
    return done.err;
  };

  train("whole", {});
  train("parts", {"--train.pause_at=5", "--data.workers=0"}, 75);
  train("parts", {"--data.workers=3"});
  CHECK(difference(f / "whole", f / "parts").empty());
  CHECK_THAT(train("parts", {"--data.mix=aa:1,bb:1,cc:1"}, 2), ContainsSubstring("data.mix"));

  // The loss of the complete split is the mean over the tokens of all sources.
  const Finished eval = lathe_in(f, {"eval", "whole"});
  REQUIRE(eval.code == 0);
  const std::string line = eval.out.substr(eval.out.rfind('\n', eval.out.size() - 2) + 1);
  const Json json = parse_json(line, "eval", Exit::internal);
  const double together =
      (799 * json["val_loss_aa"].get<double>() + 799 * json["val_loss_bb"].get<double>() +
       7999 * json["val_loss_cc"].get<double>()) /
      9597;
  CHECK(json["val_loss"].get<double>() == Approx(together).epsilon(1e-9));
  CHECK(json["tokens"] == 9597);

  const std::string table = lathe_in(f, {"inspect", "mix"}).out;
  CHECK_THAT(table, ContainsSubstring("aa  66.67% of windows"));
  CHECK(lathe_in(f, {"verify", "mix"}).code == 0);
}

}  // namespace
