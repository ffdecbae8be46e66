// tokenizer.json, and what its tokenizer does with text.
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
  small.tokens = {"a", "b", "ab"}, small.special.clear(), small.merges = {{0, 1}}, small.patterns = {"\\p{L}+|\\s"};
  return {bpe_to_json(d).dump(), bpe_to_json(small).dump(), bpe_to_json(small).dump() + "abab <|x|>"};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  const std::string text(fuzz::text_of(data, size));
  try {
    const BPE bpe(bpe_from_json(parse_json(text, "here", Exit::data), "here"), "here");
    fuzz::must(bpe_from_json(bpe_to_json(bpe.definition()), "again") == bpe.definition(), "a definition comes back");
    std::vector<int32_t> ids;
    BPE::Encoder(bpe).encode(text, ids);
    if (!bpe.definition().nfc) fuzz::must(bpe.decode({ids.begin(), ids.end()}) == text, "text comes back");
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "what is wrong is in the data");
  }
  return 0;
}
