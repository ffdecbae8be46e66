// Tests of BPE: encoding and training (compared with simple implementations), tokenizer files, and
// prepared data.
#include <map>
#include <random>

#include "core/io/claimed_folder.h"
#include "core/io/text.h"
#include "data/prepare/bpe_trainer.h"
#include "data/prepare/prepare_documents.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokens/manifest.h"
#include "data/tokens/tokens.h"
#include "tests/data/prepare/compressed.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::vector<std::string> pieces_of(const std::string& pattern, const std::string& text) {
  const Pretokenizer pretokenizer(pattern, "here");
  Pretokenizer::Cursor cursor(pretokenizer, text);
  std::vector<std::string> out;
  for (auto piece = cursor.next(); !piece.empty(); piece = cursor.next()) out.emplace_back(piece);
  return out;
}

/// Encodes with a simple algorithm: merges the two neighbors whose pair comes first in the list of
/// merges, until no pair of neighbors is in the list.
std::vector<int64_t> plain_encode(const BPEDefinition& d, const std::string& piece) {
  std::vector<int64_t> ids;
  for (const char c : piece) {
    for (size_t id = 0; id < d.tokens.size(); ++id) {
      const bool special =
          std::any_of(d.special.begin(), d.special.end(), [&](auto& s) { return s.id == int(id); });
      if (!special && d.tokens[id] == std::string(1, c)) ids.push_back(static_cast<int64_t>(id));
    }
  }

  for (;;) {
    size_t best = d.merges.size(), at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t m = 0; m < best; ++m) {
        if (d.merges[m].first == ids[i] && d.merges[m].second == ids[i + 1]) {
          best = m;
          at = i;
        }
      }
    }
    if (best == d.merges.size()) return ids;

    const std::string joined =
        d.tokens[static_cast<size_t>(ids[at])] + d.tokens[static_cast<size_t>(ids[at + 1])];
    ids[at] = std::find(d.tokens.begin(), d.tokens.end(), joined) - d.tokens.begin();
    ids.erase(ids.begin() + static_cast<int64_t>(at) + 1);
  }
}

/// Trains with a simple algorithm, which counts all pairs again for each merge. Returns the merges.
std::vector<std::pair<int32_t, int32_t>> plain_training(const std::string& text,
                                                        const BPEDefinition& trained,
                                                        int64_t min_frequency) {
  std::map<std::string, int64_t> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    for (const auto& piece : pieces_of(gpt2_pattern, text.substr(begin, end - begin)))
      ++words[piece];
    begin = end;
  }
  std::vector<std::pair<std::vector<int32_t>, int64_t>> all;
  for (const auto& [word, count] : words) {
    std::vector<int32_t> ids;
    for (const char c : word)
      ids.push_back(static_cast<int32_t>(
          std::find(trained.tokens.begin(), trained.tokens.begin() + 257, std::string(1, c)) -
          trained.tokens.begin()));
    all.emplace_back(ids, count);
  }
  std::vector<std::pair<int32_t, int32_t>> merges;
  for (int32_t next = 257; next < static_cast<int32_t>(trained.tokens.size()); ++next) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& [ids, count] : all) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) counts[{ids[i], ids[i + 1]}] += count;
    }
    std::pair<int32_t, int32_t> best;
    int64_t most = 0;
    for (const auto& [pair, count] :
         counts) {  // in the order of ids, so the pair with the smallest ids is found first
      if (count > most) {
        best = pair;
        most = count;
      }
    }
    if (most < min_frequency) break;
    merges.push_back(best);
    for (auto& [ids, count] : all) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        if (std::pair(ids[i], ids[i + 1]) == best) {
          ids[i] = next;
          ids.erase(ids.begin() + static_cast<int64_t>(i) + 1);
        }
      }
    }
  }
  return merges;
}

BPEDefinition trained_on(const TempFolder& f, const std::string& text, int64_t size,
                         int threads = 1) {
  write_file(f / "text.txt", text);
  return train_bpe({.files = {f / "text.txt"}}, {.vocab_size = size, .threads = threads});
}

TEST_CASE("texts, even those that are not UTF-8, are split by GPT-2's pattern", "[bpe]") {
  using Pieces = std::vector<std::string>;
  CHECK(pieces_of(gpt2_pattern, "I'm  here:  42 na\xC3\xAFve\n\n x") ==
        Pieces{"I", "'m", " ", " here", ":", " ", " 42", " na\xC3\xAFve", "\n\n", " x"});
  // U+180E is not white space. U+31350 is a letter since Unicode 15, and U+1E5F1 is a number since
  // Unicode 16.
  CHECK(pieces_of(gpt2_pattern, "a\xE1\xA0\x8E b") == Pieces{"a", "\xE1\xA0\x8E", " b"});
  CHECK(pieces_of(gpt2_pattern, "1\xF0\x9E\x97\xB1 a\xF0\xB1\x8D\x90") ==
        Pieces{"1\xF0\x9E\x97\xB1", " a\xF0\xB1\x8D\x90"});
  CHECK(pieces_of(gpt2_pattern, "ab\xFF\xC3 c\xE2\x82") ==
        Pieces{"ab", "\xFF\xC3", " c", "\xE2\x82"});
  CHECK(pieces_of("b+", "abba") == Pieces{"a", "bb", "a"});
  CHECK_THAT(error_of([] { Pretokenizer("(", "x.json"); }),
             Catch::Matchers::StartsWith("x.json: ") && ContainsSubstring("pattern ( "));
  // This pattern would match a single byte of a character.
  CHECK_THAT(error_of([] { Pretokenizer("\\C", "x.json"); }),
             Catch::Matchers::StartsWith("x.json: ") && ContainsSubstring("pattern \\C "));

  // The text is longer than a window of the pretokenizer, with white space across the window's end.
  std::string text(size_t{1} << 20, 'a');
  text[text.size() - 3] = ' ';
  text.replace(text.size() - 2, 2, "  ");
  text += "  b " + std::string(3 << 20, ' ') + "c";
  const Pieces pieces = pieces_of(gpt2_pattern, text);
  REQUIRE(pieces.size() == 5);
  CHECK(pieces[1] == "    ");
  CHECK(pieces[2] == " b");
  CHECK(pieces[3].size() == (3 << 20));
}

TEST_CASE("the code for known patterns finds the pieces that the patterns match", "[bpe]") {
  const std::vector<std::string> parts{"a",        "Z",
                                       "don't",    "'s",
                                       " ",        "  ",
                                       "\n",       "\t",
                                       "7",        ".",
                                       "[",        "`",
                                       "@",        "{",
                                       "\xC3\xAF", "\xFF",
                                       "_",        "I'LL",
                                       "\r",       "\xCC\x81",
                                       "word",     "\xE4\xB8\xAD",
                                       "\xC2\xA0", "\xE2\x82"};
  std::mt19937 random(11);
  for (const std::string pattern : {gpt2_pattern, llama3_pattern, qwen2_pattern}) {
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      for (uint64_t n = random() % 12; n > 0; --n) text += parts[random() % parts.size()];
      INFO(text);
      // A known pattern is not recognized within a group.
      REQUIRE(pieces_of(pattern, text) == pieces_of("(?:" + pattern + ")", text));
    }
  }
}

TEST_CASE("encoding agrees with a simple implementation, and decoding gives the text", "[bpe]") {
  const TempFolder f;
  BPEDefinition d = trained_on(f, sample_text(30000), 600);
  const BPE bpe(d, "here");
  BPE::Encoder encoder(bpe);
  std::mt19937 draw(3);
  const std::string letters = "aabbe ' \n.t\xC3\xA9\xFF";
  for (int n = 0; n < 300; ++n) {
    std::string text = n % 3 == 0 ? sample_text(60).substr(static_cast<size_t>(n % 40)) : "";
    for (unsigned i = 0; i < draw() % 40; ++i) text += letters[draw() % letters.size()];
    std::vector<int64_t> expected;
    for (const auto& piece : pieces_of(gpt2_pattern, text)) {
      for (const int64_t id : plain_encode(d, piece)) expected.push_back(id);
    }
    std::vector<int32_t> ids;
    encoder.encode(text, ids);  // the encoder caches the pieces of previous texts
    INFO(text);
    REQUIRE(std::vector<int64_t>(ids.begin(), ids.end()) == expected);
    REQUIRE(bpe.decode(expected) == text);
  }
  const std::string run(100000, 'a');  // encoding n equal letters takes n log n steps
  std::vector<int32_t> ids;
  encoder.encode(run, ids);
  CHECK(bpe.decode({ids.begin(), ids.end()}) == run);

  d.whole_pieces = true;
  d.tokens.push_back("zqz");
  const BPE whole(d, "here");
  ids.clear();
  BPE::Encoder(whole).encode("zqz", ids);
  CHECK(ids == std::vector<int32_t>{static_cast<int32_t>(d.tokens.size()) - 1});
  d.whole_pieces = false;
  const BPE merged(d, "here");
  ids.clear();
  BPE::Encoder(merged).encode("zqz", ids);
  CHECK(ids.size() == 3);
}

TEST_CASE("special tokens in a text are encoded as tokens or as text, or are refused", "[bpe]") {
  const TempFolder f;
  const BPE bpe(trained_on(f, sample_text(2000), 300), "here");
  const auto ids_of = [&](const std::string& text, SpecialText special) {
    std::vector<int32_t> ids;
    BPE::Encoder(bpe).encode(text, ids, special);
    return ids;
  };
  const std::string text = "a<|endoftext|>b";
  CHECK(ids_of(text, SpecialText::token).size() == 3);
  CHECK(ids_of(text, SpecialText::token)[1] == 0);
  const auto as_text = ids_of(text, SpecialText::text);
  CHECK(as_text.size() > 5);
  CHECK(bpe.decode({as_text.begin(), as_text.end()}) == text);
  CHECK_THAT(error_of([&] { ids_of(text, SpecialText::refuse); }),
             ContainsSubstring("byte 1 ") && ContainsSubstring("\"<|endoftext|>\""));
  CHECK(ids_of("<|endoftext", SpecialText::refuse).size() > 3);

  // Of several special tokens with the same beginning, the longest one matches.
  BPEDefinition more = bpe.definition();
  const auto first = static_cast<int32_t>(more.tokens.size());
  for (const char* name : {"<x>", "<x>yz", "<x>y"}) {
    more.special.push_back({.id = static_cast<int32_t>(more.tokens.size()), .text = name});
    more.tokens.emplace_back(name);
  }
  std::vector<int32_t> ids;
  const BPE longer(more, "here");
  BPE::Encoder(longer).encode("<x>y<x>yz<x>", ids);
  CHECK(ids == std::vector<int32_t>{first + 2, first + 1, first});
  CHECK(longer.id_of("<x>y") == first + 2);
}

TEST_CASE("training agrees with a simple implementation on any number of threads", "[bpe]") {
  const TempFolder f;
  for (const std::string& text :
       {sample_text(20000), std::string("aaaa aaa aa abab ab\nab\xC3\xA9 aaaaaaa\n\nb"),
        std::string("low lower lowest newer newest wider")}) {
    const BPEDefinition d = trained_on(f, text, 700);
    CHECK(d.merges == plain_training(text, d, 2));
    CHECK(trained_on(f, text, 700, 3) == d);
  }
  const BPEDefinition d = trained_on(f, sample_text(20000), 300);
  CHECK(d.tokens.size() == 300);
  // The same documents as JSON Lines, or compressed, give the same tokenizer.
  const std::string line = Json{{"body", sample_text(20000)}}.dump() + "\n";
  write_file(f / "a.jsonl", line);
  write_file(f / "a.jsonl.gz", gzipped(line));
  write_file(f / "a.txt.gz", gzipped(sample_text(20000)));
  for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.txt.gz"})
    CHECK(train_bpe({.files = {f / name}, .field = "body"}, {.vocab_size = 300, .threads = 2}) ==
          d);
  CHECK_THAT(error_of([&] { trained_on(f, "ab", 256); }),
             ContainsSubstring("vocabulary of 256 ") && ContainsSubstring("257"));

  CHECK_THAT(error_of([&] { trained_on(f, "", 300); }), ContainsSubstring("no text"));
  CHECK_NOTHROW(trained_on(f, "\n", 300));

  // No merge creates the text of a special token, because this text would then have two ids.
  write_file(f / "text.txt", std::string(sample_text(2000) + " user user user users"));
  const BPEDefinition with = train_bpe(
      {.files = {f / "text.txt"}}, {.vocab_size = 400, .special = {"us", "user"}, .threads = 1});
  CHECK(std::ranges::count(with.tokens, "us") == 1);
  CHECK(std::ranges::count(with.tokens, "user") == 1);
  CHECK(bpe_from_json(bpe_to_json(with), "test") == with);
  CHECK_THAT(error_of([&] {
               train_bpe({.files = {f / "text.txt"}}, {.vocab_size = 400, .special = {"a"}});
             }),
             ContainsSubstring("\"a\"") && ContainsSubstring("single byte"));
}

TEST_CASE("tokenizer files are read as written, and unsupported settings are refused by name",
          "[bpe]") {
  const TempFolder f;
  BPEDefinition d = trained_on(f, sample_text(5000), 400);
  write_bpe(d, f / "tokenizer.json");
  CHECK(read_bpe(f / "tokenizer.json") == d);
  CHECK(read_bpe(f.path()) == d);

  // The tokenizer may be in the two files of GPT-2's format.
  const Json json = bpe_to_json(d);
  const fs::path old = f / "old";
  make_folders(old);
  write_file(old / "vocab.json", json["model"]["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : json["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  write_file(old / "merges.txt", merges);
  CHECK(read_bpe(old) == d);
  write_file(old / "merges.txt", merges + "a zz\n");
  CHECK_THAT(error_of([&] { read_bpe(old); }),
             ContainsSubstring((old / "merges.txt").string()) && ContainsSubstring("\"zz\""));
  fs::remove(old / "merges.txt");
  CHECK_THAT(error_of([&] { read_bpe(old); }),
             ContainsSubstring(old.string()) && ContainsSubstring("neither a tokenizer.json"));
  CHECK_THAT(error_of([&] { read_bpe(f / "none"); }),
             ContainsSubstring("no tokenizer " + (f / "none").string()));

  const auto refused = [&](const std::function<void(Json&)>& change, const std::string& refusal) {
    Json changed = json;
    change(changed);
    CHECK_THAT(error_of([&] { BPE(bpe_from_json(changed, "t.json"), "t.json"); }),
               Catch::Matchers::StartsWith("t.json: ") && ContainsSubstring(refusal));
  };
  refused([](Json& j) { j["model"]["type"] = "WordPiece"; }, "model WordPiece");
  // With byte_fallback, the file must have SentencePiece's form.
  refused([](Json& j) { j["model"]["byte_fallback"] = true; }, "pre-tokenizer Sequence");
  refused([](Json& j) { j["model"]["dropout"] = 0.1; }, "dropout");
  refused([](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }, "normalizer Lowercase");
  refused([](Json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; },
          "pre-tokenizer Whitespace");
  refused([](Json& j) { j["pre_tokenizer"] = {{"type", "ByteLevel"}}; }, "add_prefix_space");
  refused([](Json& j) { j["added_tokens"][0]["lstrip"] = true; }, "lstrip");
  refused([](Json& j) { j["added_tokens"][0]["id"] = -1; }, "\"id\"");
  refused([](Json& j) { j["model"]["vocab"]["\xE2\x82\xAC"] = 400; }, "alphabet");
  refused([](Json& j) { j["model"]["vocab"]["ab"] = 300; }, "id 300 ");
  refused([](Json& j) { j["model"]["merges"][0] = "a"; }, "not \"a\"");
  refused([](Json& j) { j["model"].erase("merges"); }, "\"merges\"");

  // A tokenizer may put a token before each text, and may have added tokens that are not special.
  Json begins = json;
  begins["post_processor"] = {{"type", "Sequence"},
                              {"processors",
                               {{{"type", "ByteLevel"}},
                                {{"type", "TemplateProcessing"},
                                 {"single",
                                  {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                                   {{"Sequence", {{"id", "A"}}}}}}}}}};
  const size_t last = d.tokens.size() - 1;
  begins["added_tokens"].push_back({{"id", last + 1}, {"content", "<tool>"}, {"special", false}});
  begins["added_tokens"].push_back(
      {{"id", 259}, {"content", printed_token(d, 259)}});  // the vocabulary also has this token
  const BPEDefinition marked = bpe_from_json(begins, "t.json");
  CHECK(marked.begin == 0);
  CHECK_FALSE(marked.special[1].special);
  CHECK(bpe_from_json(bpe_to_json(marked), "t.json") == marked);
  // Other programs also encode pairs of texts. Each text of a pair begins with this token, and the
  // second text has type 1.
  const Json written = bpe_to_json(marked)["post_processor"];
  CHECK(written["type"] == "TemplateProcessing");
  CHECK(written["single"] ==
        Json::parse(R"([{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                                             {"Sequence": {"id": "A", "type_id": 0}}])"));
  CHECK(written["pair"] == Json::parse(R"([{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                                           {"Sequence": {"id": "A", "type_id": 0}},
                                           {"SpecialToken": {"id": "<|endoftext|>", "type_id": 1}},
                                           {"Sequence": {"id": "B", "type_id": 1}}])"));
  CHECK(BPE(marked, "t").id_of("<tool>") == static_cast<int32_t>(last + 1));
  CHECK(boundary_tokens(marked).begin == 0);
  CHECK(boundary_tokens(marked).end == 0);
  CHECK(boundary_tokens(marked).turn_end == -1);
  refused(
      [&](Json& j) {
        j["post_processor"] = begins["post_processor"];
        j["post_processor"]["processors"][1]["single"][0]["SpecialToken"]["id"] = "<s>";
      },
      "begin with \"<s>\"");
  refused([](Json& j) { j["model"]["vocab"]["a"] = 2'000'000; }, "id 2000000");

  Json pairs = json;  // each merge is a list, as in newer files
  for (auto& merge : pairs["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  CHECK(bpe_from_json(pairs, "t.json") == d);
  CHECK(Tokenizer::bpe(f.path()) == Tokenizer::bpe(f / "tokenizer.json"));
  CHECK(Tokenizer::bpe(f.path()) != Tokenizer::byte());
}

TEST_CASE(
    "SentencePiece's BPE puts a space before the text, and encodes characters without a token as "
    "bytes",
    "[bpe]") {
  const auto encoded = [](const BPE& bpe, const std::string& text, bool begins = true) {
    std::vector<int32_t> ids;
    BPE::Encoder(bpe).encode(text, ids, SpecialText::token, begins);
    std::string shown;
    for (const int32_t id : ids)
      shown +=
          (shown.empty() ? "" : "|") + printed_token(bpe.definition(), static_cast<size_t>(id));
    const std::vector<int64_t> wide(ids.begin(), ids.end());
    return std::pair(replace_all(shown, space_mark, "_"), bpe.decode(wide, begins));
  };
  const BPE each(sentencepiece(SpaceBefore::each), "t"),
      without(sentencepiece(SpaceBefore::each_without), "t"),
      first(sentencepiece(SpaceBefore::first_without), "t"),
      none(sentencepiece(SpaceBefore::none), "t");
  // Decoding removes the space before the text, and restores bytes that are not UTF-8.
  for (const std::string text : {"abc", "ab\xC3\xA9  x", "\xE2\x82\xAC", "a\xFF\xC3", "\n"}) {
    for (const BPE* bpe : {&each, &without, &first, &none})
      CHECK(encoded(*bpe, text).second == text);
  }
  CHECK(encoded(each, "abc").first == "_ab|c");
  CHECK(encoded(each, " ab").first == "__|ab");
  CHECK(encoded(each, " ab").second == " ab");
  CHECK(encoded(without, " ab").first == "_ab");
  CHECK(encoded(none, "abc").first == "abc");
  CHECK(encoded(none, "abc").second == "abc");
  CHECK(encoded(each, "ab\xC3\xA9").first == "_ab\xC3\xA9");
  CHECK(encoded(each, "\xE2\x82\xAC").first == "_|<0xE2>|<0x82>|<0xAC>");
  CHECK(encoded(each,
                "a\xE2\x96\x81"
                "b")
            .first == "_|a|_|b");  // U+2581 in a text counts as a space
  CHECK(encoded(each, "ab</s>ab").first == "_ab|</s>|_ab");
  CHECK(encoded(without, "</s> ab</s>ab").first == "</s>|_ab|</s>|_ab");
  CHECK(encoded(first, "ab</s>ab").first == "_ab|</s>|ab");
  CHECK(encoded(first, "</s>ab").first == "</s>|ab");
  CHECK(encoded(each, "ab", /*begins=*/false) == std::pair<std::string, std::string>("ab", "ab"));
  CHECK(each.decode({259}, /*begins=*/false) == " ");
  CHECK(each.decode({259}).empty());
  // If a token contains a space inside, pieces extend across spaces.
  BPEDefinition past = sentencepiece(SpaceBefore::none);
  past.merges.emplace_back(262 - 2, 259);
  past.tokens.emplace_back("a ");
  CHECK(encoded(BPE(past, "t"), "cab a b").first == "c|ab|_|a_|b");

  for (const SpaceBefore rule : {SpaceBefore::none, SpaceBefore::each, SpaceBefore::each_without,
                                 SpaceBefore::first_without}) {
    BPEDefinition d = sentencepiece(rule);
    CHECK(bpe_from_json(bpe_to_json(d), "t.json") == d);
    d.patterns.emplace_back(metaspace_pattern);
    const BPEDefinition again = bpe_from_json(bpe_to_json(d), "t.json");
    CHECK(again == d);
    CHECK(encoded(BPE(again, "t"), "a  ab").first.ends_with("a|_|_ab"));  // split at each space
  }
  // In Gemma's files, a tab has its own token instead of a byte token. A run of spaces is an added
  // token as well as a result of merges.
  Json gemma = bpe_to_json(sentencepiece(SpaceBefore::none));
  Json& vocabulary = gemma["model"]["vocab"];
  const Json tab = vocabulary["<0x09>"], two = vocabulary["\u2581\u2581"];
  REQUIRE(two.is_number());
  vocabulary.erase("<0x09>");
  vocabulary["\t"] = tab;
  gemma["added_tokens"].push_back(
      {{"id", two}, {"content", "\u2581\u2581"}, {"special", false}, {"normalized", false}});
  const BPE as_gemma(bpe_from_json(gemma, "t.json"), "t.json");
  CHECK(encoded(as_gemma, "a  b\tab") == encoded(none, "a  b\tab"));
  CHECK(encoded(as_gemma, "a  b\tab").first == "a|__|b|<0x09>|ab");
}

TEST_CASE("unsupported settings of SentencePiece's BPE are refused by name", "[bpe]") {
  const Json json = bpe_to_json(sentencepiece(SpaceBefore::each));
  const auto refused = [&](const std::function<void(Json&)>& change, const std::string& refusal) {
    Json changed = json;
    change(changed);
    CHECK_THAT(error_of([&] { BPE(bpe_from_json(changed, "t.json"), "t.json"); }),
               Catch::Matchers::StartsWith("t.json: ") && ContainsSubstring(refusal));
  };
  refused([](Json& j) { j["model"]["vocab"].erase("<0x0A>"); }, "token <0x0A>");
  refused([](Json& j) { j["model"]["vocab"]["a b"] = 900; }, "\"a b\"");
  refused([](Json& j) { j["model"]["ignore_merges"] = true; }, "ignore_merges");
  refused([](Json& j) { j["normalizer"] = nullptr; }, "without spaces");
  refused([](Json& j) { j["normalizer"] = {{"type", "NFKC"}}; }, "normalizer NFKC");
  refused([](Json& j) { j["normalizer"]["normalizers"][0]["prepend"] = "_"; }, "another prepend");
  refused([](Json& j) { j["pre_tokenizer"] = {{"type", "ByteLevel"}}; }, "pre-tokenizer ByteLevel");
  refused(
      [](Json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", space_mark}}; },
      "prepend_scheme");
  refused([](Json& j) { j["added_tokens"][0]["normalized"] = true; }, "normalized");
}

TEST_CASE("data prepared with a BPE has the ids of the text, and records the tokenizer", "[bpe]") {
  const TempFolder f;
  BPEDefinition d = trained_on(f, sample_text(30000), 500);
  write_bpe(d, f / "tokenizer.json");
  const auto prepared = [&](const std::string& out, const fs::path& tokenizer,
                            const std::vector<std::string>& files, double val_share) {
    DocumentOptions o{.source = {},
                      .out = f / out,
                      .tokenizer = Tokenizer::bpe(tokenizer),
                      .val_share = val_share};
    for (const std::string& file : files) o.source.files.push_back((f / file).string());
    prepare_documents(o);
  };
  prepared("data", f.path(), {"text.txt"}, 0.1);
  const auto manifest = read_manifest(f / "data");
  REQUIRE(manifest->tokenizer.kind() == "bpe");
  CHECK(manifest->vocab_size == std::ssize(d.tokens));
  CHECK(manifest->tokenizer == Tokenizer::bpe(f.path()));
  const auto ids_in = [&](const std::string& file) {
    const std::string bytes = read_file(f / "data" / file, Exit::data);
    std::vector<int64_t> ids;
    for (size_t i = 0; i + 1 < bytes.size(); i += 2)
      ids.push_back(static_cast<unsigned char>(bytes[i]) | static_cast<unsigned char>(bytes[i + 1])
                                                               << 8);
    return ids;
  };
  std::vector<int64_t> all = ids_in("train.bin"), val = ids_in("val.bin");
  CHECK(all.size() == static_cast<size_t>(manifest->train[0].tokens));
  CHECK(val.size() == (all.size() + val.size()) / 10);
  all.insert(all.end(), val.begin(), val.end());
  auto wanted = manifest->tokenizer.encode(sample_text(30000));
  wanted.push_back(manifest->tokenizer.document_end());
  CHECK(all == wanted);

  // In a text of several parts, SentencePiece's space is only before the first part.
  write_bpe(sentencepiece(SpaceBefore::each), f / "characters.json");
  std::string lines;
  while (lines.size() < 3'000'000) lines += "ab cab\nabc  b\n";
  write_file(f / "lines.txt", lines);
  prepared("parts", f / "characters.json", {"lines.txt"}, 0);
  auto whole = Tokenizer::bpe(f / "characters.json").encode(lines);
  whole.push_back(2);  // </s>
  CHECK((ids_in("../parts/train.bin") == whole));

  // Each file is a document. A vocabulary above 65536 needs wider ids.
  write_file(f / "b.txt", "another text");
  d.tokens.resize(70000);
  d.tokens[69999] = "zqz";
  write_bpe(d, f / "wide.json");
  prepared("two", f / "wide.json", {"b.txt", "b.txt"}, 0);
  const auto wide = read_manifest(f / "two");
  CHECK(wide->dtype == "uint32");
  CHECK(fs::file_size(f / "two/train.bin") == 4 * static_cast<size_t>(wide->train[0].tokens));
  CHECK(wide->train[0].tokens == 2 * std::ssize(wide->tokenizer.encode("another text")) + 2);

  d.nfc = true;
  write_bpe(d, f / "nfc.json");
  write_file(f / "c.txt", "cafe\xCC\x81 and more");
  prepared("three", f / "nfc.json", {"c.txt"}, 0);
  const TokenFile made(f / "three", "train", read_manifest(f / "three"));
  std::vector<int64_t> ids(static_cast<size_t>(made.size()) - 1);
  made.read(0, std::ssize(ids), 70000, ids.data());
  CHECK(ids == Tokenizer::bpe(f / "nfc.json").encode("caf\xC3\xA9 and more"));
  CHECK(Tokenizer::bpe(f / "nfc.json").encode("cafe\xCC\x81") ==
        Tokenizer::bpe(f / "nfc.json").encode("caf\xC3\xA9"));
}

TEST_CASE("a run on BPE data trains, resumes and generates, and `lathe tokenizer` handles its BPE",
          "[bpe]") {
  const TempFolder f;
  make_tiny_run(f.path());
  const auto ok = [&](std::vector<std::string> args) {
    const Finished done = lathe_in(f, std::move(args));
    INFO(done.err);
    REQUIRE(done.code == 0);
    return done.out;
  };
  ok({"tokenizer", "train", "text.txt", "--out", "bpe", "--vocab-size", "400"});
  ok({"prepare", "text.txt", "--out", "bpe-data", "--tokenizer", "bpe"});
  REQUIRE(
      lathe_in(f, {"train", "tiny.toml", "--data.dir=bpe-data", "--train.max_time=0.001"}).code ==
      75);
  ok({"train", "tiny.toml", "--data.dir=bpe-data", "--train.steps=4"});
  CHECK_THAT(ok({"generate", "runs/tiny", "--tokens", "5", "--prompt", "the"}),
             Catch::Matchers::StartsWith("the"));

  // Generation ends at the end of a document, unless --ignore-eos is set.
  const auto written = [&](const char* more) {
    return ok({"generate", "runs/tiny", "--tokens", "3000", "--prompt", "the", "--temperature", "3",
               "--seed", "5", more});
  };
  const std::string ended = written("--cache=true"), whole = written("--ignore-eos=true");
  REQUIRE_THAT(whole, ContainsSubstring("<|endoftext|>"));
  CHECK(ended == whole.substr(0, whole.find("<|endoftext|>")) + "\n");

  // Texts can be scored as plain text, compressed, and as JSON Lines.
  const std::string scored = sample_text(3000);
  write_file(f / "scored.txt", scored);
  write_file(f / "scored.gz", gzipped(scored));
  write_file(f / "scored.jsonl", Json{{"text", scored}}.dump() + "\n");
  write_file(f / "twice.jsonl",
             Json{{"text", scored}}.dump() + "\n" + Json{{"text", scored}}.dump() + "\n");
  const auto score = [&](const char* file) { return Json::parse(ok({"eval", "runs/tiny", file})); };
  const Json plain = score("scored.txt");
  for (const char* file : {"scored.gz", "scored.jsonl"}) {
    for (const char* key : {"loss", "tokens", "bytes"}) CHECK(score(file)[key] == plain[key]);
  }
  CHECK(score("twice.jsonl")["tokens"] == 2 * plain["tokens"].get<int64_t>());
  CHECK(score("twice.jsonl")["loss"].get<double>() ==
        Approx(plain["loss"].get<double>()).epsilon(1e-12));

  write_file(f / "in.txt", "the text\n and <|endoftext|>");
  const std::string ids = ok({"tokenizer", "encode", "--tokenizer", "bpe", "in.txt"});
  CHECK_THAT(ids, Catch::Matchers::EndsWith(" 0\n"));
  write_file(f / "ids.txt", ids);
  CHECK(ok({"tokenizer", "decode", "--tokenizer", "bpe/tokenizer.json", "ids.txt"}) ==
        "the text\n and <|endoftext|>");
  write_file(f / "lines.txt", "\"the\\n\"\n\"\"\n");
  CHECK_THAT(ok({"tokenizer", "encode", "--tokenizer", "bpe", "lines.txt", "--json=true"}),
             Catch::Matchers::EndsWith("\n\n"));
  CHECK_THAT(ok({"tokenizer", "inspect", "--tokenizer", "bpe"}),
             Catch::Matchers::StartsWith("byte-level BPE, "));

  const auto refused = [&](std::vector<std::string> args, int code, const std::string& refusal) {
    const Finished done = lathe_in(f, std::move(args));
    CHECK(done.code == code);
    CHECK_THAT(done.err, ContainsSubstring(refusal));
  };
  refused({"tokenizer", "encode", "in.txt"}, 2, "needs --tokenizer");
  refused({"tokenizer", "encode", "in.txt", "--tokenizer", "bpe", "--out", "x"}, 2, "no --out");
  refused({"tokenizer", "spell", "in.txt"}, 2, "not spell");
  refused({"tokenizer", "encode", "in.txt", "--tokenizer", "nothing"}, 3, "no tokenizer nothing");
  refused({"tokenizer", "train", "in.txt", "--out", "bpe"}, 2, "bpe/tokenizer.json");
  {
    const ClaimedFolder other(f / "new", "");
    refused({"tokenizer", "train", "in.txt", "--out", "new"}, 8, "`lathe tokenizer train`");
  }
  CHECK(!fs::exists(f / "new"));
  refused({"tokenizer", "train", "nothing.txt", "--out", "new/er"}, 3, "nothing.txt");
  CHECK(!fs::exists(f / "new"));

  // If the disk is full, the command leaves neither the file nor its folders.
  const Finished full = run({.binary = "lathe_faults",
                             .args = {"tokenizer", "train", "in.txt", "--out", "new/er"},
                             .folder = f.path(),
                             .environment = {{"LATHE_TEST_FAIL", "write ENOSPC 1 1"}}});
  CHECK(full.code == 6);
  CHECK_THAT(full.err, ContainsSubstring("free space"));
  CHECK(!fs::exists(f / "new"));
  refused({"tokenizer", "decode", "--tokenizer", "bpe", "in.txt"}, 3, "\"the\"");
  write_file(f / "lines.txt", "1\n");
  const Finished number =
      lathe_in(f, {"tokenizer", "encode", "--tokenizer", "bpe", "lines.txt", "--json=true"});
  CHECK(number.code == 3);
  CHECK_THAT(number.err, ContainsSubstring("line 1 ") && ContainsSubstring("JSON string"));
}

}  // namespace
