// Creates tokenizers for tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "data/tokenizers/tokenizer.h"

namespace lathe::test {

/// Returns a BPE tokenizer of the 256 bytes, without merges, followed by `special` tokens.
inline Tokenizer byte_tokenizer_with(const std::vector<std::string>& special) {
  BPEDefinition d;
  for (int i = 0; i < 256; ++i) d.tokens.emplace_back(1, static_cast<char>(i));
  for (const std::string& s : special) {
    d.special.push_back({static_cast<int32_t>(d.tokens.size()), s});
    d.tokens.push_back(s);
  }
  Json json;
  json["kind"] = "bpe";
  json["bpe"] = bpe_to_json(d);
  return Tokenizer::from_json(json, "kind", "test");
}

/// Returns a tokenizer in SentencePiece's form, with the tokens <unk>, <s> and </s>, 256 byte
/// tokens, five characters, and five merges. `rule`: where encoding adds a space.
inline BPEDefinition sentencepiece(SpaceBefore rule) {
  BPEDefinition d;
  d.tokens = {"<unk>", "<s>", "</s>"};
  for (int32_t i = 0; i < 3; ++i) d.special.push_back({i, d.tokens[static_cast<size_t>(i)]});
  for (int32_t byte = 0; byte < 256; ++byte) {
    d.byte_tokens.push_back(static_cast<int32_t>(d.tokens.size()));
    d.tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const char* c : {" ", "a", "b", "c", "\xC3\xA9"}) d.tokens.emplace_back(c);

  const auto merge = [&](const std::string& a, const std::string& b) {
    // A character of one byte occurs twice in `tokens`. Find the second, which is not a byte token.
    const auto id = [&](const std::string& token) {
      return static_cast<int32_t>(d.tokens.rend() -
                                  std::find(d.tokens.rbegin(), d.tokens.rend(), token) - 1);
    };
    d.merges.emplace_back(id(a), id(b));
    d.tokens.push_back(a + b);
  };

  merge("a", "b");
  merge(" ", " ");
  merge(" ", "ab");
  merge("ab", "c");
  merge(" ab", "\xC3\xA9");

  d.patterns.clear();
  d.space_before = rule;
  return d;
}

}  // namespace lathe::test
