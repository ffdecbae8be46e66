// Tests of documents in `lathe prepare`: JSON Lines, compressed files, and counts of dropped
// documents. The number of workers and the compression of a file must not change a byte of the
// result.
#include <zstd.h>

#include <cstdlib>
#include <fstream>

#include "core/io/input.h"
#include "core/io/json.h"
#include "data/prepare/bpe_trainer.h"
#include "data/prepare/prepare_documents.h"
#include "data/tokens/manifest.h"
#include "data/tokens/tokens.h"
#include "tests/data/prepare/compressed.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::string zstandard(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string all_of(const fs::path& path, size_t most) {
  InputStream in(path.string());
  std::string text;
  while (in.read(text, most)) {
  }
  return text;
}

TEST_CASE("a long document is cut after a line break with no white space on either side",
          "[prepare_documents]") {
  const TempFolder f;
  std::string text;
  for (int i = 0; i < 400; ++i) text += i % 8 == 7 ? "here\nand" : "not \nhere\n\nnor\n here";
  write_file(f / "long.txt", text);
  const DocumentSource source{.files = {(f / "long.txt").string()}, .format = "text"};
  PartReader reader(source, /*whole=*/false, /*part_bytes=*/512);
  std::string all;
  int cuts = 0;
  for (Part part; reader.next(part);) {
    all += part.text;
    if (part.ends) continue;
    CHECK(part.text.ends_with("herehere\n"));
    ++cuts;
  }
  CHECK(cuts >= 10);
  CHECK(all == text);
}

TEST_CASE("compressed files decompress to their text, and damage is detected",
          "[prepare_documents]") {
  const TempFolder f;
  std::string text = sample_text(700000);
  for (const auto& pack : {gzipped, zstandard}) {
    for (const size_t most : {size_t{7}, size_t{1} << 20}) {
      const std::string some = most == 7 ? text.substr(0, 5000) : text;
      write_file(f / "a", pack(some));
      CHECK(all_of(f / "a", most) == some);
      write_file(f / "a", pack(some) + pack("more") + pack(""));
      CHECK(all_of(f / "a", most) == some + "more");
    }

    if (pack == zstandard) {
      // pzstd begins its files with a frame of three bytes, which decoders skip.
      write_file(f / "a", std::string("\x50\x2a\x4d\x18\x03\0\0\0abc", 11) + pack(text));
      CHECK(all_of(f / "a", 1 << 20) == text);
    }

    // This data expands so much that the decoder still holds text after it has read the complete
    // file.
    write_file(f / "a", pack(std::string(3'000'000, 'x')));
    CHECK(all_of(f / "a", 1000) == std::string(3'000'000, 'x'));

    // A file that ends early is refused, and so is a file with other bytes after the compressed
    // data.
    const std::string packed = pack(text);
    write_file(f / "a", packed.substr(0, packed.size() / 2));
    CHECK_THAT(error_of([&] { all_of(f / "a", 1000); }),
               ContainsSubstring((f / "a").string()) && ContainsSubstring("ends within"));
    write_file(f / "a", packed + "tail");
    CHECK_THAT(error_of([&] { all_of(f / "a", 1000); }),
               ContainsSubstring((f / "a").string()) && ContainsSubstring("damaged"));

    std::string other = packed;
    for (size_t i = other.size() / 2; i < other.size() / 2 + 64; ++i)
      other[i] = static_cast<char>(~other[i]);
    write_file(f / "a", other);
    bool noticed = false;  // zstd without a checksum may not notice a flipped bit
    try {
      noticed = all_of(f / "a", 1000) != text;
    } catch (const Error& e) {
      noticed = e.code() == Exit::data;
    }
    CHECK(noticed);
  }

  write_file(f / "a", "");
  CHECK(all_of(f / "a", 10).empty());
  CHECK_THAT(error_of([&] { InputStream(f.path().string()); }),
             ContainsSubstring(f.path().string()) && ContainsSubstring("regular file"));
}

Tokenizer trained(const TempFolder& f) {
  write_file(f / "train.txt", sample_text(20000) + "<|endoftext|>");
  write_bpe(train_bpe({.files = {f / "train.txt"}}, {.vocab_size = 300, .threads = 1}),
            f / "tokenizer.json");
  return Tokenizer::bpe(f / "tokenizer.json");
}

std::vector<int64_t> split_ids(const fs::path& folder, const char* split) {
  const auto manifest = read_manifest(folder);
  if (!has_split(folder, split, manifest)) return {};
  const TokenFile file(folder, split, manifest);
  std::vector<int64_t> ids(static_cast<size_t>(file.size()));
  file.read(0, file.size(), 1 << 30, ids.data());
  return ids;
}

/// Returns the contents of the folder's files, by name.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const std::string& name : names(folder)) all[name] = slurp(folder / name);
  return all;
}

Json counts_of(const fs::path& folder) { return read_manifest(folder)->documents; }

std::string line_of(const std::string& text) {
  return Json{{"id", 1}, {"text", text}, {"more", {1, 2}}}.dump() + "\n";
}

TEST_CASE("JSON Lines give the same tokens with any number of workers and any compression",
          "[prepare_documents]") {
  const TempFolder f;
  const Tokenizer tokenizer = trained(f);
  const int64_t end = tokenizer.bpe()->id_of("<|endoftext|>");
  REQUIRE(end >= 0);

  std::vector<std::string> texts{"the lathe turns", "na\xC3\xAFve \xF0\x9F\x98\x80\n\"quoted\"\t",
                                 "<|endoftext|> is text"};
  std::string lines = "\xEF\xBB\xBF" + line_of(texts[0]) + "\n  \r\n" + line_of(texts[1]);
  lines += "{\"text\": \"<|endoftext|> is te\\u0078t\"}\r\n";
  for (int i = 0; i < 30000; ++i) {
    texts.push_back(str("document ", i, " cuts ", i * i, " under it"));
    lines += line_of(texts.back());
  }
  lines.pop_back();  // the last line does not need a line break

  std::vector<int64_t> wanted;
  BPE::Encoder encoder(*tokenizer.bpe());
  for (const std::string& text : texts) {
    std::vector<int32_t> ids;
    encoder.encode(text, ids, SpecialText::text);
    wanted.insert(wanted.end(), ids.begin(), ids.end());
    wanted.push_back(end);
  }

  write_file(f / "a.jsonl", lines);
  write_file(f / "a.jsonl.gz", gzipped(lines));
  write_file(f / "a.ndjson.zst", zstandard(lines));
  DocumentOptions o{
      .source = {.files = {(f / "a.jsonl").string()}}, .out = f / "one", .tokenizer = tokenizer};
  prepare_documents(o);
  auto ids = split_ids(f / "one", "train");
  const auto val = split_ids(f / "one", "val");
  CHECK(std::ssize(val) == static_cast<int64_t>(0.1 * static_cast<double>(wanted.size())));
  ids.insert(ids.end(), val.begin(), val.end());
  CHECK(ids == wanted);
  CHECK(counts_of(f / "one")["kept"] == texts.size());

  for (const char* file : {"a.jsonl.gz", "a.ndjson.zst"}) {
    o.source.files = {(f / file).string()};
    o.workers = 4;
    o.out = f / (std::string("of-") + file);
    prepare_documents(o);
    CHECK(contents(o.out) == contents(f / "one"));
  }

  // If the output has several shards, they have the same tokens in the same order.
  o.shard_tokens = 50000;
  o.out = f / "shards";
  prepare_documents(o);
  CHECK(names(o.out).contains("train_000001.bin"));
  auto again = split_ids(o.out, "train");
  const auto tail = split_ids(o.out, "val");
  again.insert(again.end(), tail.begin(), tail.end());
  CHECK(again == wanted);
}

TEST_CASE("lines that are not documents are refused with their line numbers",
          "[prepare_documents]") {
  const TempFolder f;
  const auto refusal = [&](const std::string& lines, const std::string& field = "text") {
    write_file(f / "a.jsonl", lines);
    const DocumentOptions o{.source = {.files = {(f / "a.jsonl").string()}, .field = field},
                            .out = f / "out"};
    const std::string what = error_of([&] { prepare_documents(o); });
    CHECK(!fs::exists(f / "out"));
    return what;
  };

  const std::string good = line_of("one") + line_of("two");
  CHECK_THAT(refusal(good + "{\"text\": 3}\n"),
             ContainsSubstring("a.jsonl:3") && ContainsSubstring("\"text\""));
  CHECK_THAT(refusal(good, "body"),
             ContainsSubstring("a.jsonl:1") && ContainsSubstring("\"body\""));
  CHECK_THAT(refusal(good + "\n[1]\n"),
             ContainsSubstring("a.jsonl:4") && ContainsSubstring("\"text\""));

  // Lines that are not valid JSON are refused.
  CHECK_THAT(refusal(good + "{\"text\": \"x\n"),
             ContainsSubstring("a.jsonl:3") && ContainsSubstring("JSON"));
  CHECK_THAT(refusal(good + "{\"text\": \"x\"} x\n"),
             ContainsSubstring("a.jsonl:3") && ContainsSubstring("JSON"));
  CHECK_THAT(refusal(line_of("ab\x01") + "{\"text\": \"\xFF\"}\n"),
             ContainsSubstring("a.jsonl:2") && ContainsSubstring("JSON"));

  // Files without any text are refused.
  CHECK_THAT(refusal("\n\n"), ContainsSubstring(" 0 tokens"));
  CHECK_THAT(refusal(line_of("")), ContainsSubstring(" 0 tokens") && ContainsSubstring("1 empty"));
}

TEST_CASE("documents are dropped, repaired and split by their content, and counted in the manifest",
          "[prepare_documents]") {
  const TempFolder f;
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += line_of(str("document ", i % 300, " of some"));
  lines += line_of("x") + line_of(std::string(100, 'y')) + line_of(" \n");
  write_file(f / "a.jsonl", lines);
  DocumentOptions o{.source = {.files = {(f / "a.jsonl").string()}}, .out = f / "out"};
  o.dedup = true;
  o.min_bytes = 2;
  o.max_bytes = 99;
  o.val_by_hash = true;
  o.val_share = 0.25;
  o.workers = 3;
  prepare_documents(o);
  const Json counts = counts_of(f / "out");
  CHECK(counts["read"] == 403);
  CHECK(counts["kept"] == 300);
  CHECK(counts["duplicates"] == 100);
  CHECK(counts["too_short"] == 1);
  CHECK(counts["too_long"] == 1);
  CHECK(counts["empty"] == 1);
  const auto in_val = counts["in_validation"].get<int>();
  CHECK((in_val > 45 && in_val < 105));
  // If the documents are reordered, each of them stays in its split.
  std::vector<std::string> reversed;
  for (int i = 299; i >= 0; --i) reversed.push_back(line_of(str("document ", i, " of some")));
  lines.clear();
  for (const std::string& line : reversed) lines += line;
  write_file(f / "a.jsonl", lines);
  o.out = f / "reversed";
  prepare_documents(o);
  const auto documents = [](const std::vector<int64_t>& ids) {
    std::set<std::string> all;
    std::istringstream text(Tokenizer::byte().decode(ids));
    for (std::string line; std::getline(text, line);) all.insert(line);
    return all;
  };
  for (const char* split : {"train", "val"})
    CHECK(documents(split_ids(f / "out", split)) == documents(split_ids(o.out, split)));
  CHECK(std::ssize(documents(split_ids(o.out, "val"))) == in_val);

  write_file(f / "bad.txt", "good \xFF\xFE bytes\xC3");
  DocumentOptions bad{.source = {.files = {(f / "bad.txt").string()}}, .out = f / "bad"};
  CHECK_THAT(error_of([&] { prepare_documents(bad); }),
             ContainsSubstring("bad.txt") && ContainsSubstring("byte 5"));
  bad.repair = true;
  bad.val_share = 0;
  prepare_documents(bad);
  CHECK(Tokenizer::byte().decode(split_ids(f / "bad", "train")) ==
        "good \xEF\xBF\xBD\xEF\xBF\xBD bytes\xEF\xBF\xBD\n");
  CHECK(counts_of(f / "bad")["repaired"] == 1);
  CHECK(counts_of(f / "bad")["replaced_bytes"] == 3);
}

TEST_CASE("texts are split at separators, and long ones are read in parts without changing tokens",
          "[prepare_documents]") {
  const TempFolder f;
  const Tokenizer tokenizer = trained(f);
  write_file(f / "a.txt", "one\n<|endoftext|>two<|endoftext|>\n");
  DocumentOptions o{.source = {.files = {(f / "a.txt").string()}, .separator = "<|endoftext|>"},
                    .out = f / "a"};
  o.val_share = 0;
  prepare_documents(o);
  CHECK(Tokenizer::byte().decode(split_ids(f / "a", "train")) == "one\n\ntwo\n");
  CHECK(counts_of(f / "a")["empty"] == 1);

  // Separators that overlap are found from the left, wherever the parts of the text begin.
  {
    std::string overlapping;
    for (int i = 0; overlapping.size() < 3'000'000; ++i)
      overlapping += std::string(static_cast<size_t>(1 + i % 5), 'x') +
                     std::string(static_cast<size_t>(3 + 2 * (i % 3)), '\n');
    write_file(f / "lines.txt", overlapping);
    DocumentOptions lines{.source = {.files = {(f / "lines.txt").string()}, .separator = "\n\n"},
                          .out = f / "lines"};
    lines.val_share = 0;
    prepare_documents(lines);
    std::string wanted;
    for (size_t at = 0; at < overlapping.size();) {
      const size_t end = std::min(overlapping.find("\n\n", at), overlapping.size());
      const std::string document = overlapping.substr(at, end - at);
      if (document.find('x') != std::string::npos) wanted += document + "\n";
      at = end + 2;
    }
    CHECK(Tokenizer::byte().decode(split_ids(f / "lines", "train")) == wanted);
  }

  std::string text = sample_text(3'500'000);
  for (size_t at = 60; at + 3 < text.size(); at += 61) text[at] = '\n';
  for (size_t at = 1000; at + 3 < text.size(); at += 1777) text.replace(at, 3, " \n\n");
  write_file(f / "long.txt", text);
  std::vector<int32_t> ids;
  BPE::Encoder(*tokenizer.bpe()).encode(text, ids, SpecialText::text);
  std::vector<int64_t> wanted(ids.begin(), ids.end());
  wanted.push_back(tokenizer.bpe()->id_of("<|endoftext|>"));
  DocumentOptions parts{
      .source = {.files = {(f / "long.txt").string()}}, .out = f / "parts", .tokenizer = tokenizer};
  parts.val_share = 0;
  parts.workers = 3;
  prepare_documents(parts);
  CHECK(split_ids(f / "parts", "train") == wanted);
  CHECK(counts_of(f / "parts")["read"] == 1);
  // If the same text comes from standard input, the prepared data are the same.
  write_file(f / "long.gz", gzipped(text));
  const std::string lathe = (binary_folder() / "lathe").string();
  const auto shell = [&](const std::string& words) {
    return std::system((lathe + " prepare - --out " + (f / "stdin").string() +
                        " --val 0 --tokenizer " + (f / "tokenizer.json").string() + " " + words +
                        " >/dev/null 2>&1")
                           .c_str());
  };
  CHECK(shell("< " + (f / "long.gz").string()) == 0);
  CHECK(contents(f / "stdin") == contents(f / "parts"));
}

TEST_CASE("lines that already appeared in any document are dropped and counted",
          "[prepare_documents]") {
  const TempFolder f;
  const std::string lines = line_of("menu\none\n\n  menu \ntwo") + line_of("menu\n\nthree\nthree") +
                            line_of("two\n \none");
  write_file(f / "a.jsonl", lines);
  DocumentOptions o{.source = {.files = {(f / "a.jsonl").string()}}, .out = f / "out"};
  o.val_share = 0;
  o.dedup_lines = true;
  prepare_documents(o);
  CHECK(Tokenizer::byte().decode(split_ids(f / "out", "train")) == "menu\none\n\ntwo\n\nthree\n\n");
  CHECK(counts_of(f / "out")["dropped_lines"] == 5);
  CHECK(counts_of(f / "out")["empty"] == 1);
  CHECK(counts_of(f / "out")["kept"] == 2);
}

TEST_CASE("an interrupted preparation resumes, and gives the same bytes in every mode",
          "[prepare_documents]") {
  const TempFolder f(fast_folder());
  const Tokenizer tokenizer = trained(f);
  std::string lines;
  for (int i = 0; i < 60000; ++i)
    lines += line_of(str("document ", i % 45000, " cuts ", i * 7 % 1000, "\nunder\nit ", i));
  write_file(f / "a.jsonl", lines);
  write_file(f / "b.jsonl.gz", gzipped(lines));
  struct Mode {
    bool by_hash, dedup, lines;
    int64_t shard;
  };
  for (const Mode& mode : {Mode{false, false, false, 100'000'000},
                           {true, true, false, 70'000},
                           {false, true, true, 300'000}}) {
    DocumentOptions o{.source = {.files = {(f / "a.jsonl").string(), (f / "b.jsonl.gz").string()}},
                      .out = f / "whole"};
    o.tokenizer = tokenizer;
    o.val_by_hash = mode.by_hash;
    o.dedup = mode.dedup;
    o.dedup_lines = mode.lines;
    o.shard_tokens = mode.shard;
    o.workers = 2;
    prepare_documents(o);
    const auto wanted = contents(f / "whole");
    o.out = f / "parts";
    o.progress_seconds = 0;
    int64_t asked = 0, times = 0;
    for (const int64_t after : {5, 3, 6}) {  // stops after this number of calls, one per part
      asked = 0;
      o.stop = [&] { return ++asked > after; };
      const std::string what = error_of([&] { prepare_documents(o); });
      if (what.empty()) break;
      CHECK_THAT(what, ContainsSubstring((f / "parts").string()) && ContainsSubstring("resume"));
      CHECK(fs::exists(f / "parts/.unfinished-manifest.json-progress"));
      ++times;
      if (times != 2) {  // bytes after the recorded length must be discarded
        for (const auto& entry : fs::directory_iterator(f / "parts")) {
          if (entry.path().extension() == ".bin")
            std::ofstream(entry.path(), std::ios::app) << "torn";
        }
      }
      if (times == 2) {  // other settings start over, and then the first settings start over
        DocumentOptions other = o;
        other.tokenizer = Tokenizer::byte();
        asked = -3;
        CHECK_THAT(error_of([&] { prepare_documents(other); }),
                   ContainsSubstring((f / "parts").string()) && ContainsSubstring("resume"));
      }
    }
    CHECK(times >= 2);
    o.stop = nullptr;
    o.workers = 3;
    o.progress_seconds = 1000;
    prepare_documents(o);
    CHECK((contents(f / "parts") == wanted));
    for (const char* folder : {"whole", "parts"}) fs::remove_all(f / folder);
  }

  // A changed input is refused. A missing shard makes the preparation start over.
  DocumentOptions o{.source = {.files = {(f / "a.jsonl").string()}}, .out = f / "whole"};
  o.val_by_hash = true;
  prepare_documents(o);
  const auto wanted = contents(f / "whole");
  o.out = f / "parts";
  o.progress_seconds = 0;
  const auto cut_short = [&] {
    int64_t asked = 0;
    o.stop = [&] { return ++asked > 4; };
    CHECK_THAT(error_of([&] { prepare_documents(o); }),
               ContainsSubstring((f / "parts").string()) && ContainsSubstring("resume"));
    o.stop = nullptr;
  };
  cut_short();
  std::string changed = lines;
  changed.at(changed.find("cuts")) = 'C';
  write_file(f / "a.jsonl", changed);
  CHECK_THAT(error_of([&] { prepare_documents(o); }),
             ContainsSubstring(o.out.string()) && ContainsSubstring("input is not"));
  write_file(f / "a.jsonl", lines.substr(0, lines.find('\n', 5000)));
  CHECK_THAT(error_of([&] { prepare_documents(o); }),
             ContainsSubstring(o.out.string()) && ContainsSubstring("shorter"));
  write_file(f / "a.jsonl", lines);
  fs::remove(f / "parts/.unfinished-train_000000.bin");
  prepare_documents(o);
  CHECK((contents(f / "parts") == wanted));
  // A flipped bit in the written data makes the preparation start over, whether the bit is in a
  // full shard or in the last shard.
  for (const int64_t shard : {int64_t{100'000'000}, int64_t{200'000}}) {
    for (const bool by_hash : {true, false}) {
      INFO("shards of " << shard
                        << (by_hash ? ", validation by hash" : ", validation from the tail"));
      for (const char* folder : {"whole", "parts"}) fs::remove_all(f / folder);
      o.shard_tokens = shard;
      o.val_by_hash = by_hash;
      o.out = f / "whole";
      prepare_documents(o);
      o.out = f / "parts";
      cut_short();
      const fs::path written =
          f / (by_hash ? "parts/.unfinished-train_000000.bin" : "parts/.unfinished-train_all.bin");
      std::string bytes = slurp(written);
      bytes.at(1000) ^= 1;
      write_file(written, bytes);
      prepare_documents(o);
      CHECK((contents(f / "parts") == contents(f / "whole")));
    }
  }
  o.shard_tokens = 100'000'000;
  o.val_by_hash = true;
  // A damaged record makes the preparation start over.
  for (const char* record : {"{\"command\": 5}", "[]", "{"}) {
    INFO(record);
    fs::remove_all(f / "parts");
    cut_short();
    write_file(f / "parts/.unfinished-manifest.json-progress", record);
    prepare_documents(o);
    CHECK((contents(f / "parts") == wanted));
  }
}

TEST_CASE("the total size of the input is unknown if standard input is among the files",
          "[prepare_documents]") {
  const TempFolder f;
  write_file(f / "a.txt", "12345");
  write_file(f / "b.txt", "123");
  const std::string a = (f / "a.txt").string(), b = (f / "b.txt").string();
  CHECK(input_bytes({a, b}) == 8);
  CHECK(input_bytes({"-"}) == 0);
  CHECK(input_bytes({"-", a}) == 0);
  CHECK(input_bytes({a, "-", b}) == 0);
  CHECK_THAT(error_of([&] { input_bytes({a, "-", (f / "none").string()}); }),
             ContainsSubstring((f / "none").string()));
}

}  // namespace
