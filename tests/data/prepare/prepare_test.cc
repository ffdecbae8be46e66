// Tests of preparing data: it gives the same bytes as earlier builds, needs bounded memory, and may
// be interrupted at any moment.
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "core/io/checksum.h"
#include "core/io/claimed_folder.h"
#include "core/io/json.h"
#include "data/prepare/prepare.h"
#include "data/tokens/manifest.h"
#include "data/tokens/tokens.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Returns all ids of a split.
std::vector<int64_t> all_ids(const fs::path& folder, const std::string& split) {
  const TokenFile tokens(folder, split, read_manifest(folder));
  tokens.verify();
  std::vector<int64_t> ids(static_cast<size_t>(tokens.size()));
  tokens.read(0, tokens.size(), 65536, ids.data());
  return ids;
}

TEST_CASE("shards have the bytes that earlier builds wrote", "[prepare]") {
  const TempFolder f;
  fs::create_directories(f / "in/sub");
  write_file(f / "in/a.txt", sample_text(30000));
  std::string wide;
  for (int i = 0; i < 200; ++i) wide += "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80\n";
  write_file(f / "in/b.txt", wide);
  write_file(f / "in/empty.txt", "");
  std::string capitals = sample_text(5000);
  std::transform(capitals.begin(), capitals.end(), capitals.begin(),
                 [](char c) { return std::toupper(c); });
  write_file(f / "in/sub/c.txt", capitals);

  int n = 0;
  const auto made = [&](const std::string& tokenizer, double val_share, int64_t shard_tokens) {
    const PrepareOptions options{.inputs = {(f / "in").string()},
                                 .out = f / ("out" + std::to_string(n++)),
                                 .tokenizer = tokenizer,
                                 .val_share = val_share,
                                 .shard_tokens = shard_tokens};
    prepare(options);

    const DataManifest m = *read_manifest(options.out);
    std::string text = str(m.tokenizer.kind(), " ", m.vocab_size, " ", m.largest_id);
    std::set<std::string> files{"manifest.json"};
    for (const auto* split : {&m.train, &m.val}) {
      for (const auto& s : *split) {
        text += str("; ", s.file, " ", s.tokens, " ", s.xxh3);
        CHECK(file_checksum(options.out / s.file) == s.xxh3);
        CHECK(fs::file_size(options.out / s.file) == 2 * static_cast<uint64_t>(s.tokens));
        files.insert(s.file);
      }
    }
    CHECK(names(options.out) == files);
    return text;
  };

  // These checksums are from an earlier build, which kept complete texts in memory.
  CHECK(made("char", 0.1, 100'000'000) ==
        "char 37 36; train.bin 33300 a904565fb7ae69cb; val.bin 3700 b11ea94ea7f697be");
  CHECK(made("char", 0.25, 7000) ==
        "char 37 36; train_000000.bin 7000 7d9c8a45855f84c4; train_000001.bin 7000 "
        "b648f8ae893177d6; train_000002.bin "
        "7000 b9b7cdd8be7d0069; train_000003.bin 6750 274531a0104d965d; val_000000.bin 7000 "
        "7594d634ed6f00a9; "
        "val_000001.bin 2250 00b8654b93424771");
  CHECK(made("byte", 0.1, 10000) ==
        "byte 256 240; train_000000.bin 10000 2fb9d4aadebe3bf5; train_000001.bin 10000 "
        "b3afd5c5e98a24c3; "
        "train_000002.bin 10000 d40e0526fa2c9589; train_000003.bin 4380 5883f922c022bdf4; val.bin "
        "3820 "
        "e029d9cbaec0f07a");
}

TEST_CASE(
    "a character that is cut between two pieces is decoded if it is valid, and otherwise refused",
    "[prepare]") {
  const TempFolder f;
  constexpr size_t piece = size_t{4} << 20;
  for (const std::string& wide :
       std::vector<std::string>{"\xC3\xAF", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (size_t before = 0; before <= wide.size(); ++before) {
      std::string text(piece - before, 'a');
      text += wide + "b";
      write_file(f / "in.txt", text);
      fs::remove_all(f / "out");
      prepare({.inputs = {(f / "in.txt").string()},
               .out = f / "out",
               .tokenizer = "char",
               .val_share = 0});

      const auto ids = all_ids(f / "out", "train");
      REQUIRE(ids.size() == piece - before + 2);
      CHECK(ids[piece - before - 1] == 0);
      CHECK(ids[piece - before] == 2);
      CHECK(ids[piece - before + 1] == 1);
      CHECK(read_manifest(f / "out")->tokenizer.vocabulary() ==
            std::vector<std::string>{"a", "b", wide});

      if (before == 0 || before == wide.size()) continue;
      fs::remove_all(f / "out");
      write_file(f / "in.txt", text.substr(0, piece));  // the file ends within the character
      CHECK_THAT(
          error_of([&] {
            prepare({.inputs = {(f / "in.txt").string()}, .out = f / "out", .tokenizer = "char"});
          }),
          ContainsSubstring("in.txt") && ContainsSubstring("UTF-8") &&
              ContainsSubstring(str("byte ", piece - before)));
      CHECK(!fs::exists(f / "out"));
    }
  }

  // A character can't begin in one file and end in the next.
  fs::remove_all(f / "out");
  write_file(f / "1.txt", "a\xE2\x82");
  write_file(f / "2.txt", "\xAC");
  CHECK_THAT(
      error_of([&] {
        prepare({.inputs = {(f / "1.txt").string(), (f / "2.txt").string()},
                 .out = f / "out",
                 .tokenizer = "char"});
      }),
      ContainsSubstring("1.txt") && ContainsSubstring("UTF-8") && ContainsSubstring("byte 1"));
}

TEST_CASE("memory does not grow with the input", "[prepare][process_memory]") {
  const TempFolder f;
  write_file(f / "big.txt", sample_text(48'000'000));
  const Finished r =
      lathe_in_new_process(f, {"prepare", "big.txt", "--out", "out", "--tokenizer", "char"});
  CHECK(r.code == 0);
  rusage usage{};
  REQUIRE(getrusage(RUSAGE_CHILDREN, &usage) ==
          0);  // the largest child process so far; no other [prepare] test starts a large one
  CHECK(usage.ru_maxrss < 256 * 1024);
}

TEST_CASE("a preparation that was killed at any moment can be repeated, even with other options",
          "[prepare]") {
  const TempFolder f;
  write_file(f / "text.txt", sample_text(20000));
  const auto prepare_in = [&](const std::string& binary, const std::string& out,
                              const std::string& kill) {
    return run({.binary = binary,
                .args = {"prepare", "text.txt", "--out", out, "--tokenizer", "char",
                         "--shard-tokens", "7000"},
                .folder = f.path(),
                .environment = {{"LATHE_TEST_KILL", kill}}})
        .code;
  };

  REQUIRE(prepare_in("lathe", "whole", "none 1") == 0);
  int n = 0;
  for (const char* kill :
       {"prepare: shards written 1", "prepare: manifest written 1", "prepare: shard renamed 1",
        "prepare: shard renamed 4", "prepare: renamed 1"}) {
    INFO(kill);
    const std::string out = "out" + std::to_string(n++);
    fs::create_directories(f / out);
    write_file(f / (out + "/notes.txt"), "mine");
    REQUIRE(prepare_in("lathe_faults", out, kill) == 128 + 9);

    // After the last action the output is complete, and another call is refused.
    if (std::string(kill).starts_with("prepare: renamed")) {
      CHECK(prepare_in("lathe", out, "none 1") == 2);
      fs::remove(f / (out + "/.unfinished-lock"));
    } else {
      const std::string error = error_of([&] { TokenFile(f / out, "val", std::nullopt); });
      if (std::string(kill).ends_with('4'))  // the validation shard has its final name
        CHECK(error == "");
      else
        CHECK_THAT(error, ContainsSubstring("no val.bin"));
      REQUIRE(prepare_in("lathe_faults", out, kill) == 128 + 9);  // killed a second time
      // Larger shards have other names. A command that writes them leaves none of the previous
      // files.
      fs::copy(f / out, f / (out + "b"));
      CHECK(lathe_in(f, {"prepare", "text.txt", "--out", out + "b"}).code == 0);
      CHECK((names(f / (out + "b")) ==
             std::set<std::string>{"manifest.json", "notes.txt", "train.bin", "val.bin"}));
      CHECK(prepare_in("lathe", out, "none 1") == 0);
    }

    CHECK(slurp(f / (out + "/notes.txt")) == "mine");
    fs::remove(f / (out + "/notes.txt"));
    CHECK(names(f / out) == names(f / "whole"));
    for (const auto& name : names(f / "whole"))
      CHECK(slurp(f / out / name) == slurp(f / "whole" / name));
  }
}

TEST_CASE("an interrupted preparation of plain text continues, and gives the same bytes",
          "[prepare]") {
  const TempFolder f(fast_folder());
  std::string text = sample_text(9'000'000);
  text.replace(5'000'000, 3, "\xE2\x82\xAC");
  write_file(f / "a.txt", text);
  write_file(f / "b.txt", text.substr(0, 5'000'000));
  const auto contents = [&](const char* folder) {
    std::map<std::string, std::string> all;
    for (const auto& name : names(f / folder)) all[name] = slurp(f / folder / name);
    return all;
  };
  for (const char* tokenizer : {"byte", "char"}) {
    for (const int64_t shard : {int64_t{100'000'000}, int64_t{2'000'000}}) {
      PrepareOptions o{.inputs = {(f / "a.txt").string(), (f / "b.txt").string()},
                       .out = f / "whole"};
      o.tokenizer = tokenizer;
      o.shard_tokens = shard;
      o.val_share = 0.3;
      prepare(o);
      o.out = f / "parts";
      o.progress_seconds = 0;
      const int64_t survey = 5;  // calls of `stop` in the first pass (the survey), one per piece
      for (const int64_t after : {1, 2, 4}) {
        INFO(tokenizer << ", shards of " << shard << ", stopped after " << after);
        int64_t asked = 0;
        o.stop = [&] { return ++asked > survey + after; };
        CHECK_THAT(error_of([&] { prepare(o); }),
                   ContainsSubstring(o.out.string()) && ContainsSubstring("resume"));
        for (const auto& entry : fs::directory_iterator(f / "parts")) {  // bytes after the recorded
                                                                         // length must be dropped
          if (entry.path().extension() == ".bin")
            std::ofstream(entry.path(), std::ios::app) << "torn";
        }
      }
      o.stop = nullptr;
      if (shard == 2'000'000) {  // an input of equal length, changed in the part that has been
                                 // prepared
        std::string other = text;
        std::swap(other[100], other[101]);
        REQUIRE(other != text);
        write_file(f / "a.txt", other);
        CHECK_THAT(error_of([&] { prepare(o); }),
                   ContainsSubstring(o.out.string()) && ContainsSubstring("input is not"));
        write_file(f / "a.txt", text);
      }
      o.progress_seconds = 1000;
      prepare(o);
      CHECK((contents("parts") == contents("whole")));

      // If a bit of the written data has changed, all data are written again.
      fs::remove_all(f / "parts");
      int64_t asked = 0;
      o.progress_seconds = 0;
      o.stop = [&] { return ++asked > survey + 2; };
      CHECK_THAT(error_of([&] { prepare(o); }),
                 ContainsSubstring(o.out.string()) && ContainsSubstring("resume"));
      const fs::path written = f / (shard == 2'000'000 ? "parts/.unfinished-train_000000.bin"
                                                       : "parts/.unfinished-train.bin");
      std::string changed = slurp(written);
      changed.at(1000) ^= 1;
      write_file(written, changed);
      o.stop = nullptr;
      prepare(o);
      CHECK((contents("parts") == contents("whole")));
      for (const char* folder : {"whole", "parts"}) fs::remove_all(f / folder);
    }
  }
  // The command resumes a preparation that was stopped after its first record of the progress.
  const std::vector<std::string> command{"prepare", "a.txt", "--out", "out"};
  REQUIRE(lathe_in(f, {"prepare", "a.txt", "--out", "whole"}).code == 0);
  PrepareOptions o{.inputs = {"a.txt"}, .out = "out"};
  const fs::path here = fs::current_path();
  fs::current_path(f.path());
  int64_t asked = 0;
  // The survey calls `stop` three times.
  o.progress_seconds = 0;
  o.stop = [&] { return ++asked > 3 + 2; };
  const std::string stopped = error_of([&] { prepare(o); });
  fs::current_path(here);
  CHECK_THAT(stopped, ContainsSubstring("resume"));
  const Finished r = lathe_in(f, command);
  CHECK(r.code == 0);
  CHECK_THAT(r.out + r.err, ContainsSubstring("continuing"));
  CHECK((contents("out") == contents("whole")));
}

TEST_CASE("a preparation into a folder within its input reads only the input", "[prepare]") {
  const TempFolder f(fast_folder());
  fs::create_directories(f / "in/more");
  write_file(f / "in/a.txt", "one ");
  write_file(f / "in/more/b.txt", "two ");
  fs::create_directories(f / "in/out");
  write_file(f / "in/outside.txt", "three");
  write_file(f / "in/out/.unfinished-manifest.json-progress", "left by a killed command");
  CHECK(expand_inputs({(f / "in").string()}, f / "in/out") ==
        std::vector<fs::path>{f / "in/a.txt", f / "in/more/b.txt", f / "in/outside.txt"});
  CHECK(expand_inputs({(f / "in").string()}).size() == 4);
  // An input may be inside the folder to which the data is written.
  CHECK(expand_inputs({(f / "in/more").string()}, f / "in") ==
        std::vector<fs::path>{f / "in/more/b.txt"});
}

TEST_CASE("a user's file in the folder of an interrupted preparation is not deleted", "[prepare]") {
  const TempFolder f;
  write_file(f / "text.txt", sample_text(20000));
  const std::vector<std::string> command{"prepare", "text.txt", "--out", "out"};
  REQUIRE(run({.binary = "lathe_faults",
               .args = command,
               .folder = f.path(),
               .environment = {{"LATHE_TEST_KILL", "prepare: shard renamed 2"}}})
              .code == 128 + 9);

  const std::string theirs = slurp(f / "out/train.bin");
  write_file(f / "out/train.bin", "mine");
  for (int i = 0; i < 2; ++i) {
    const Finished r = lathe_in(f, command);
    CHECK(r.code == 2);
    CHECK_THAT(r.err, ContainsSubstring("out/train.bin") && ContainsSubstring("interrupted"));
    CHECK(slurp(f / "out/train.bin") == "mine");
  }

  // After the user's file is removed, the same command succeeds.
  fs::rename(f / "out/train.bin", f / "mine.bin");
  CHECK(lathe_in(f, command).code == 0);
  CHECK(slurp(f / "out/train.bin") == theirs);

  // A folder with a shard that no preparation has written is refused.
  fs::create_directories(f / "raw");
  write_file(f / "raw/val.bin", "mine");
  CHECK(lathe_in(f, {"prepare", "text.txt", "--out", "raw"}).code == 2);
  CHECK((names(f / "raw") == std::set<std::string>{"val.bin"}));
}

TEST_CASE("a folder in which data is being prepared is refused", "[prepare]") {
  const TempFolder f;
  write_file(f / "text.txt", sample_text(20000));
  fs::create_directories(f / "out");
  {
    const FolderLock lock(f / "out", ClaimedFolder::lock_name);
    const Finished r = lathe_in(f, {"prepare", "text.txt", "--out", "out"});
    CHECK(r.code == 8);
    CHECK_THAT(r.err, ContainsSubstring("out is in use") && ContainsSubstring("`lathe prepare`"));
  }
  CHECK((names(f / "out") ==
         std::set<std::string>{ClaimedFolder::lock_name}));  // only the other command's lock
}

TEST_CASE(
    "a preparation removes the lock file of a killed preparation, and no other file named lock",
    "[prepare]") {
  const TempFolder f;
  write_file(f / "text.txt", sample_text(2000));
  fs::create_directories(f / "out");
  write_file(f / "out/lock", "mine");
  const std::vector<std::string> command{"prepare", "text.txt", "--out", "out"};

  // Kill a preparation before it has written anything.
  REQUIRE(run({.binary = "lathe_faults",
               .args = command,
               .folder = f.path(),
               .environment = {{"LATHE_TEST_KILL", "folder claimed 1"}}})
              .code == 128 + 9);
  CHECK((names(f / "out") == std::set<std::string>{ClaimedFolder::lock_name, "lock"}));

  REQUIRE(lathe_in(f, command).code == 0);
  CHECK(
      (names(f / "out") == std::set<std::string>{"lock", "manifest.json", "train.bin", "val.bin"}));
  CHECK(slurp(f / "out/lock") == "mine");
}

TEST_CASE("preparing checks for a stop every few megabytes, and a stop leaves no files",
          "[prepare]") {
  const TempFolder f;
  write_file(f / "text.txt", sample_text(20'000'000));
  int64_t asked = 0;
  PrepareOptions options{.inputs = {(f / "text.txt").string()},
                         .out = f / "a/b/out",
                         .tokenizer = "char",
                         .stop = [&] {
                           ++asked;
                           return false;
                         }};
  prepare(options);
  const int64_t all = asked;
  CHECK(all >= 2 * 20 / 5);

  fs::remove_all(f / "a");
  fs::create_directories(f / "there");
  write_file(f / "there/notes.txt", "mine");
  for (const int64_t last : {int64_t{1}, all / 2 + 1, all}) {
    for (const fs::path& out : {f / "a/b/out", f / "there"}) {
      asked = 0;
      options.out = out;
      options.stop = [&] { return ++asked == last; };

      Exit code = Exit::done;
      try {
        prepare(options);
      } catch (const Error& e) {
        code = e.code();
      }

      CHECK(code == Exit::stopped);
      CHECK(asked == last);
      CHECK(!fs::exists(f / "a"));
      CHECK((names(f / "there") == std::set<std::string>{"notes.txt"}));
    }
  }
}

TEST_CASE("files that are not text are refused without --binary", "[prepare]") {
  const TempFolder f;
  const std::string tail = sample_text(3000);
  const auto nul = [&](std::string text, size_t at) {
    text[at] = '\0';
    return text;
  };
  write_file(f / "text.txt", tail);
  write_file(f / "latin.txt", "caf\xE9 " + tail);
  write_file(f / "word.txt", "PAR1 " + tail);
  write_file(f / "a.png", "\x89PNG\r\n" + tail);
  write_file(f / "a.npz", "PK\3\4" + tail);
  write_file(f / "a.whl", nul("PK\3\4" + tail, 50));
  write_file(f / "wide.txt", "\xFF\xFE" + nul(tail, 1));
  write_file(f / "late.txt", nul(sample_text(5'000'000), 4'900'000));
  fs::create_directory(f / "mixed");
  write_file(f / "mixed/a.txt", tail);
  write_file(f / "mixed/b.txt", nul(tail, 2000));
  REQUIRE(
      lathe_in(f, {"tokenizer", "train", "text.txt", "--out", "bpe", "--vocab-size", "300"}).code ==
      0);

  const auto prepared = [&](const std::string& file, const std::vector<std::string>& flags) {
    fs::remove_all(f / "out");
    std::vector<std::string> words{"prepare", file, "--out", "out"};
    words.insert(words.end(), flags.begin(), flags.end());
    return lathe_in(f, words);
  };
  const std::vector<std::vector<std::string>> tokenizers{
      {}, {"--tokenizer", "char"}, {"--tokenizer", "bpe", "--invalid", "repair"}, {"--dedup"}};
  for (const auto& flags : tokenizers) {
    INFO((flags.empty() ? "byte" : flags.back()));
    for (const auto& [input, file, type] :
         std::vector<std::tuple<std::string, std::string, std::string>>{
             {"a.png", "a.png", "PNG"},
             {"a.npz", "a.npz", "ZIP"},
             {"a.whl", "a.whl", "ZIP"},
             {"wide.txt", "wide.txt", "UTF-16"},
             {"late.txt", "late.txt", "NUL"},
             {"mixed", "mixed/b.txt", "NUL"}}) {
      const Finished refused = prepared(input, flags);
      CHECK(refused.code == static_cast<int>(Exit::data));
      CHECK_THAT(refused.err, ContainsSubstring(file) && ContainsSubstring("not text") &&
                                  ContainsSubstring(type));
      CHECK(!fs::exists(f / "out"));
    }
    CHECK(prepared("text.txt", flags).code == 0);  // files of text are accepted
    CHECK(prepared("word.txt", flags).code == 0);
  }
  CHECK(prepared("latin.txt", {}).code == 0);

  // With --binary, each byte of any file becomes a token.
  CHECK(prepared("a.png", {"--tokenizer", "byte", "--binary"}).code == 0);
  CHECK(all_ids(f / "out", "train").size() + all_ids(f / "out", "val").size() ==
        fs::file_size(f / "a.png"));
  CHECK(all_ids(f / "out", "train")[0] == 0x89);
  write_file(f / "x.npy", "\x93NUMPY" + tail);
  CHECK(prepared("x.npy", {"--tokenizer", "byte", "--binary"}).code == 0);
  CHECK(prepared("mixed", {"--tokenizer", "byte", "--binary"}).code == 0);
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--binary"},
        {"--tokenizer", "char", "--binary"},
        {"--tokenizer", "byte", "--binary", "--dedup"},
        {"--tokenizer", "byte", "--binary", "--task", "regression"}}) {
    INFO(flags.back());
    const Finished refused = prepared("a.png", flags);
    CHECK(refused.code == static_cast<int>(Exit::usage));
    CHECK_THAT(refused.err, ContainsSubstring("--binary") || ContainsSubstring("--task"));
    CHECK(!fs::exists(f / "out"));
  }
}

TEST_CASE("the error for a Parquet file contains the command that converts it", "[prepare]") {
  const TempFolder f;
  write_file(f / "a.parquet", "PAR1" + std::string(40, '\0') + "PAR1");
  write_file(f / "word.txt", "PAR1 " + sample_text(3000));
  write_file(f / "b.csv", "1,2\n3,4\n");

  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"a.parquet"},
           {"a.parquet", "--target", "price"},
           {"a.parquet", "--format", "jsonl"},
           {"b.csv", "a.parquet"},
           {"b.csv", "--val-file", "a.parquet"},
           {"--source", "b=word.txt", "--source", "a=a.parquet"}}) {
    INFO(words.back());
    std::vector<std::string> all{"prepare", "--out", "out"};
    all.insert(all.end(), words.begin(), words.end());

    const Finished refused = lathe_in(f, all);
    CHECK(refused.code == static_cast<int>(Exit::data));
    CHECK_THAT(refused.err, ContainsSubstring("a.parquet") && ContainsSubstring("Parquet"));
    CHECK_THAT(refused.err, ContainsSubstring("pandas.read_parquet('IN.parquet')"));
    CHECK(!fs::exists(f / "out"));
  }

  // A text that begins with PAR1 is accepted, and so is a Parquet file with --binary.
  CHECK(lathe_in(f, {"prepare", "word.txt", "--out", "out"}).code == 0);
  CHECK(lathe_in(f, {"prepare", "a.parquet", "--out", "out2", "--tokenizer", "byte", "--binary"})
            .code == 0);
}

fs::path watched_folder;
std::optional<std::set<std::string>> names_at_end;

TEST_CASE("once the manifest has its final name, no record of the progress is left", "[prepare]") {
  const TempFolder f;
  write_file(f / "text.txt", sample_text(20000));
  watched_folder = f / "out";
  PrepareOptions o{.inputs = {(f / "text.txt").string()}, .out = watched_folder};
  o.progress_seconds = 0;
  fault_hook = [](const char* point) {
    // This test is meaningful only if the record existed.
    const std::string record = ".unfinished-manifest.json-progress";
    if (std::string(point) == "prepare: shards written")
      REQUIRE(names(watched_folder).contains(record));
    if (std::string(point) == "prepare: renamed") names_at_end = names(watched_folder);
  };
  prepare(o);
  fault_hook = nullptr;
  REQUIRE(names_at_end);
  names_at_end->erase(ClaimedFolder::lock_name);
  CHECK((*names_at_end == std::set<std::string>{"manifest.json", "train.bin", "val.bin"}));
}

}  // namespace
