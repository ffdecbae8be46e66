// Tokenizers for tests.
#pragma once

#include <string>
#include <vector>

#include "core/io/json.h"
#include "data/tokenizers/tokenizer.h"

namespace lathe::test {

/// A BPE of the 256 bytes, without merges, and special tokens behind them.
inline Tokenizer bytes_and(const std::vector<std::string>& special) {
  BPEDefinition d;
  for (int i = 0; i < 256; ++i) d.tokens.emplace_back(1, static_cast<char>(i));
  for (const std::string& s : special) {
    d.special.push_back({static_cast<int32_t>(d.tokens.size()), s});
    d.tokens.push_back(s);
  }
  Json json;
  json["kind"] = "bpe", json["bpe"] = bpe_to_json(d);
  return Tokenizer::from_json(json, "kind", "test");
}

}  // namespace lathe::test
