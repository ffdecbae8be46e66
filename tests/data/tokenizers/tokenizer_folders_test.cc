// Tests of tokenizer folders in the format of transformers: added tokens that are not special,
// pre-tokenizers, and the settings of tokenizer_config.json. The expected ids are those of Hugging
// Face's tokenizers 0.23.
#include <algorithm>
#include <map>

#include "core/io/text.h"
#include "data/tokenizers/chat_template.h"
#include "data/tokenizers/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"

namespace {

using namespace lathe;
using namespace lathe::test;

std::vector<std::string> pieces_of(const BPE& bpe, const std::string& text,
                                   SpecialText special = SpecialText::text) {
  std::vector<int32_t> ids;
  BPE::Encoder(bpe).encode(text, ids, special);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(bpe.definition().tokens[static_cast<size_t>(id)]);
  return pieces;
}

/// Returns `d` after it was written as a tokenizer.json and read again.
BPEDefinition reread(const BPEDefinition& d) { return bpe_from_json(bpe_to_json(d), "test"); }

TEST_CASE("an added token that is not special is found in every text", "[tokenizer_folders]") {
  BPEDefinition d = byte_tokenizer_with({"<|end|>"}).bpe()->definition();
  for (const char* text : {"<think>", "\n\n"}) {
    d.special.push_back({static_cast<int32_t>(d.tokens.size()), text, /*special=*/false});
    d.tokens.emplace_back(text);
  }
  const BPE bpe(d, "test");
  using Pieces = std::vector<std::string>;
  CHECK(pieces_of(bpe, "a<think>\n\n<|") == Pieces{"a", "<think>", "\n\n", "<", "|"});
  CHECK(pieces_of(bpe, "<think>", SpecialText::refuse) == Pieces{"<think>"});
  CHECK(pieces_of(bpe, "<|end|>").size() == 7);
  CHECK(pieces_of(bpe, "<|end|>", SpecialText::token) == Pieces{"<|end|>"});
  CHECK(error_of([&] { pieces_of(bpe, "<|end|>", SpecialText::refuse); }) != "");
  CHECK(reread(d) == d);

  // Texts are divided at line breaks only if no added token extends past a line break.
  d.patterns = {gpt2_pattern};
  CHECK(BPE(d, "test").ends_at_lines());
  d.special.push_back({static_cast<int32_t>(d.tokens.size()), "a\nb", /*special=*/false});
  d.tokens.emplace_back("a\nb");
  CHECK(!BPE(d, "test").ends_at_lines());
}

TEST_CASE("in a chat, a special token is followed by a space if SentencePiece's rule requires it",
          "[tokenizer_folders]") {
  for (const SpaceBefore rule : {SpaceBefore::none, SpaceBefore::each, SpaceBefore::each_without,
                                 SpaceBefore::first_without}) {
    INFO(static_cast<int>(rule));
    BPEDefinition d = sentencepiece(rule);
    for (const char* text : {"<|im_start|>", "<|im_end|>"}) {
      d.special.push_back({static_cast<int32_t>(d.tokens.size()), text});
      d.tokens.emplace_back(text);
    }
    Json json{{"kind", "bpe"}};
    json["bpe"] = bpe_to_json(d);
    const Tokenizer tokenizer = Tokenizer::from_json(json, "kind", "test");
    const ChatTemplate chat(tokenizer, "here", "nothing");
    const std::vector<ChatMessage> messages{{"user", "ab"}, {"assistant", "ab"}};

    // The conversation is one text, in which special tokens are found.
    std::vector<int32_t> wanted, marked;
    BPE::Encoder encoder(*tokenizer.bpe());
    encoder.encode("<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\nab<|im_end|>\n", wanted);
    chat.append_marked(messages, encoder, marked);
    for (int32_t& id : marked) id &= 0xFFFFFF;
    CHECK(marked == wanted);

    // The tokens of the prompt are the beginning of the conversation's tokens.
    const std::vector<int64_t> prompt = chat.encode_prompt({messages[0]});
    REQUIRE(prompt.size() < wanted.size());
    CHECK(std::equal(prompt.begin(), prompt.end(), wanted.begin()));
  }
}

TEST_CASE("a document ends with the end token that the settings name", "[tokenizer_folders]") {
  Tokenizer t = byte_tokenizer_with({"<eos>", "<|im_end|>"});
  CHECK(t.document_end() == -1);
  TokenizerSettings s;
  s.has_special_tokens = true;
  s.eos_token = "<eos>";
  t.set_settings(s);
  CHECK(t.document_end() == 256);

  // An added token <|im_end|> ends a turn even if it is not special. Other added tokens that are
  // not special, such as </s>, do not end a document.
  BPEDefinition d = byte_tokenizer_with({"</s>", "<|im_start|>", "<|im_end|>"}).bpe()->definition();
  for (SpecialToken& token : d.special) token.special = false;
  Json json{{"kind", "bpe"}};
  json["bpe"] = bpe_to_json(d);
  const Tokenizer added = Tokenizer::from_json(json, "kind", "test");
  CHECK(added.document_end() == -1);
  CHECK(added.ends_text(258));
  CHECK(ChatTemplate(added, "here", "nothing").end() == 258);

  // In chat models, eos_token ends a turn; documents still end with the usual token.
  Tokenizer chat = byte_tokenizer_with({"<|endoftext|>", "<|im_end|>"});
  s.eos_token = "<|im_end|>";
  chat.set_settings(s);
  CHECK(chat.document_end() == 256);
}

TEST_CASE("a split at a literal text is written as that text; syntax of other engines is refused",
          "[tokenizer_folders]") {
  Json json = bpe_to_json(byte_tokenizer_with({}).bpe()->definition());
  Json& split = json["pre_tokenizer"]["pretokenizers"][0];
  REQUIRE(split["type"] == "Split");
  split["pattern"] = {{"String", "a.b"}};
  const BPEDefinition d = bpe_from_json(json, "test");
  CHECK(bpe_to_json(d)["pre_tokenizer"]["pretokenizers"][0] == split);
  CHECK(reread(d) == d);
  const Pretokenizer pretokenizer(d.patterns.at(0), "test");
  Pretokenizer::Cursor cursor(pretokenizer, "xa.baab");
  CHECK(cursor.next() == "x");
  CHECK(cursor.next() == "a.b");
  CHECK(cursor.next() == "aab");

  // Runs of earlier versions store the literal text as a regular expression.
  split["pattern"] = {{"Regex", d.patterns.at(0)}};
  CHECK(bpe_from_json(json, "test") == d);

  const TempFolder f{fast_folder()};
  const auto error_with = [&](const Json& pattern) {
    split["pattern"] = pattern;
    write_file(f / "tokenizer.json", json_text(json));
    return error_of([&] { read_bpe(f / "tokenizer.json"); });
  };
  for (const char* pattern : {R"([\p{L}&&[^a]]+)", "[a-c[0-9]]", R"(\h+)", R"(\H)", R"(x\Qa\E)"}) {
    INFO(pattern);
    CHECK(error_with({{"Regex", pattern}}) != "");
  }
  CHECK(error_with({{"String", "a\\Eb"}}) != "");
  for (const char* pattern :
       {R"(\[a&&b\[)", "[[:alpha:]]+", R"([\]\[]+)", gpt2_pattern, llama3_pattern, qwen2_pattern}) {
    INFO(pattern);
    CHECK(error_with({{"Regex", pattern}}) == "");
  }
}

/// A folder with vocab.json and merges.txt, as transformers' slow tokenizers write it.
struct SlowFolder {
  TempFolder folder{fast_folder()};
  SlowFolder() {
    Json vocab = Json::object();
    for (size_t b = 0; b < 256; ++b) vocab[byte_alphabet()[b]] = b;
    write_file(folder / "vocab.json", json_text(vocab));
    write_file(folder / "merges.txt", "#version: 0.2\n");
  }
  BPEDefinition with(const char* name, const Json& json) const {
    write_file(folder / name, json_text(json));
    return read_bpe(folder.path());
  }
};

TEST_CASE("a vocab.json is read with its tokenizer class's pattern and tokens that other files add",
          "[tokenizer_folders]") {
  const SlowFolder f;
  const BPEDefinition plain = read_bpe(f.folder.path());
  CHECK(plain.patterns == std::vector<std::string>{gpt2_pattern});
  CHECK(plain.special.empty());

  // In older folders, the special tokens are those that a configuration file names.
  write_file(f.folder / "special_tokens_map.json", R"({"eos_token": "<|im_end|>"})");
  BPEDefinition d = f.with("added_tokens.json", {{"<|im_end|>", 256}, {"<tool>", 257}});
  REQUIRE(d.special.size() == 2);
  CHECK(special_id(d, "<|im_end|>") == 256);
  CHECK(std::ranges::find(d.special, 256, &SpecialToken::id)->special);
  CHECK(!std::ranges::find(d.special, 257, &SpecialToken::id)->special);
  CHECK(pieces_of(BPE(d, "test"), "<tool><|im_end|>").size() == 11);

  Json config{{"tokenizer_class", "Qwen2Tokenizer"},
              {"added_tokens_decoder",
               {{"256", {{"content", "<|im_end|>"}, {"special", true}, {"lstrip", false}}},
                {"258", {{"content", "<box>"}, {"special", false}}}}}};
  d = f.with("tokenizer_config.json", config);
  CHECK(d.patterns == std::vector<std::string>{qwen2_pattern});
  CHECK(d.nfc);
  CHECK(d.special.size() == 3);
  CHECK(d.tokens.at(258) == "<box>");

  const auto error_with = [&](const Json& changed) {
    return error_of([&] { f.with("tokenizer_config.json", changed); });
  };
  Json begins{{"tokenizer_class", "GPT2Tokenizer"}, {"bos_token", "<tool>"}};
  CHECK(f.with("tokenizer_config.json", begins).begin == -1);
  begins["add_bos_token"] = true;
  CHECK(f.with("tokenizer_config.json", begins).begin == 257);

  CHECK_THAT(error_with({{"tokenizer_class", "RobertaTokenizer"}}),
             ContainsSubstring("RobertaTokenizer"));
  CHECK_THAT(error_with({{"add_prefix_space", true}}), ContainsSubstring("add_prefix_space"));
  config["added_tokens_decoder"]["256"]["lstrip"] = true;
  CHECK_THAT(error_with(config), ContainsSubstring("lstrip"));
  CHECK_THAT(error_with({{"added_tokens_decoder", {{"x", {{"content", "a"}}}}}}),
             ContainsSubstring("added_tokens_decoder"));
}

TEST_CASE("a character whose token replaces a byte token is written as that character in merges",
          "[tokenizer_folders]") {
  // Gemma's vocabulary has the token "\t" instead of the byte token <0x09>.
  Json json = bpe_to_json(sentencepiece(SpaceBefore::none));
  Json& vocab = json["model"]["vocab"];
  const auto tab = vocab.at("<0x09>").get<int32_t>();
  vocab.erase("<0x09>");
  vocab["\t"] = tab;
  vocab["\t\t"] = vocab.size();
  json["model"]["merges"].push_back("\t \t");
  const BPEDefinition d = bpe_from_json(json, "test");
  CHECK(d.byte_tokens.at(9) == tab);

  const Json written = bpe_to_json(d);
  using Vocabulary = std::map<std::string, int32_t>;
  CHECK(written["model"]["vocab"].get<Vocabulary>() == vocab.get<Vocabulary>());
  CHECK(written["model"]["merges"] == json["model"]["merges"]);
  CHECK(reread(d) == d);
}

TEST_CASE("add_bos_token decides for Llama's classes whether a prompt begins with a token",
          "[tokenizer_folders]") {
  const TempFolder f{fast_folder()};
  BPEDefinition d = sentencepiece(SpaceBefore::each);
  const auto begin_with = [&](int32_t template_begin, const Json& config) {
    d.begin = template_begin;
    write_file(f / "tokenizer.json", json_text(bpe_to_json(d)));
    write_file(f / "tokenizer_config.json", json_text(config));
    return Tokenizer::bpe(f.path()).prompt_begin();
  };
  const auto config = [](const char* name, bool add) {
    return Json{
        {"tokenizer_class", name}, {"bos_token", {{"content", "<s>"}}}, {"add_bos_token", add}};
  };
  CHECK(begin_with(-1, config("LlamaTokenizerFast", true)) == 1);
  CHECK(begin_with(1, config("LlamaTokenizer", false)) == -1);
  CHECK(begin_with(1, config("GemmaTokenizerFast", true)) == 1);

  // With other classes, and in folders without the key, the post-processor decides.
  CHECK(begin_with(-1, config("PreTrainedTokenizerFast", true)) == -1);
  CHECK(begin_with(1, config("PreTrainedTokenizerFast", false)) == 1);
  CHECK(begin_with(1, {{"tokenizer_class", "LlamaTokenizer"}}) == 1);
}

TEST_CASE("each missing setting is filled in separately", "[tokenizer_folders]") {
  const TokenizerSettings base{.has_special_tokens = true,
                               .bos_token = "<s>",
                               .eos_token = "</s>",
                               .pad_token = "<pad>",
                               .other_tokens = "[\"<x>\"]",
                               .generation_config = "{\"eos_token_id\": 0}"};
  TokenizerSettings data{
      .chat_template = "chatml", .has_special_tokens = true, .eos_token = "<end>"};
  data.fill_from(base);
  CHECK(data.chat_template == "chatml");
  CHECK(data.eos_token == "<end>");
  CHECK(data.bos_token.empty());
  CHECK(data.pad_token == "<pad>");
  CHECK(data.other_tokens == base.other_tokens);
  CHECK(data.end_ids == std::vector<int64_t>{0});
  data.add_end_id(2);
  CHECK(data.end_ids == std::vector<int64_t>{2, 0});
  CHECK_THAT(data.generation_config, ContainsSubstring("2"));
}

}  // namespace
