// Fuzzes tokenizer files and encoding. An input is tokenizer.json, or vocab.json, an empty line and
// merges.txt.
#include "core/io/json.h"
#include "data/tokenizers/bpe.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  BPEDefinition d;
  d.tokens = {"<|x|>"};
  d.special = {{0, "<|x|>"}};
  for (int b = 0; b < 256; ++b) d.tokens.emplace_back(1, static_cast<char>(b));
  d.tokens.insert(d.tokens.end(), {"ab", "abab", " a"});
  d.merges = {{'a' + 1, 'b' + 1}, {257, 257}, {' ' + 1, 'a' + 1}};
  BPEDefinition small = d;
  small.tokens = {"a", "b", "ab"}, small.special.clear(), small.merges = {{0, 1}},
  small.patterns = {"\\p{L}+|\\s"};
  BPEDefinition characters = d;  // SentencePiece's form
  characters.tokens.insert(characters.tokens.end(), {" ", "a", "b", "ab", " ab"});
  for (int32_t b = 0; b < 256; ++b) characters.byte_tokens.push_back(b + 1);
  characters.tokens.erase(characters.tokens.begin() + 257, characters.tokens.begin() + 260);
  characters.merges = {{258, 259}, {257, 260}}, characters.patterns.clear();
  std::vector<std::string> all{bpe_to_json(d).dump(), bpe_to_json(small).dump(),
                               bpe_to_json(small).dump() + "abab <|x|>",
                               R"({"a":0,"b":1,"ab":2,"<|x|>":3})"
                               "\n\n#version: 0.2\na b\n"};
  for (const SpaceBefore rule :
       {SpaceBefore::none, SpaceBefore::each, SpaceBefore::first_without}) {
    characters.space_before = rule;
    all.push_back(bpe_to_json(characters).dump());
  }
  return all;
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  const std::string text(fuzz::text_of(data, size));
  try {
    const size_t two = text.find("\n\n");
    const BPE bpe(two == std::string::npos
                      ? bpe_from_json(parse_json(text, "here", Exit::data), "here")
                      : bpe_from_gpt2(text.substr(0, two), text.substr(two + 2), "here", "here"),
                  "here");
    fuzz::must(bpe_from_json(bpe_to_json(bpe.definition()), "again") == bpe.definition(),
               "a definition is read back unchanged");
    std::vector<int32_t> ids;
    BPE::Encoder(bpe).encode(text, ids);
    if (!bpe.definition().nfc && bpe.definition().byte_tokens.empty())
      fuzz::must(bpe.decode({ids.begin(), ids.end()}) == text, "decoding gives the text");
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
  }
  return 0;
}
