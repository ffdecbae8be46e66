// Creates runs of small models with random weights.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "train/store/checkpoint.h"

namespace lathe::test {

/// Returns a BPE tokenizer of the 256 bytes, "th", "the" and <|endoftext|> (258), and writes it to
/// `f`/tokenizer.json.
inline Tokenizer small_tokenizer(const TempFolder& f) {
  BPEDefinition d;
  for (int b = 0; b < 256; ++b) d.tokens.emplace_back(1, static_cast<char>(b));
  d.tokens.insert(d.tokens.end(), {"th", "the", "<|endoftext|>"});
  d.merges = {{'t', 'h'}, {256, 'e'}};
  d.special = {{258, "<|endoftext|>"}};
  write_bpe(d, f / "tokenizer.json");
  return Tokenizer::bpe(f / "tokenizer.json");
}

using Values = std::vector<std::pair<std::string, ConfigValue>>;

/// Creates a run with one checkpoint, of step 3, of a small model with random weights, and returns
/// its folder. `values`: keys of [model]. Uses small_tokenizer() if there is no `tokenizer`.
inline fs::path make_run(const TempFolder& f, const std::string& name, const std::string& kind,
                         const Values& values,
                         const std::optional<Tokenizer>& tokenizer = std::nullopt) {
  RunConfig config;
  config.model.kind = kind;
  config.model.own = find_model_kind(kind)->config;
  for (const auto& [key, value] : values)
    config.schema().set(&config, "model." + key, value, "here");
  const auto model = make_model(*find_model_kind(kind), config.model.own, {}, 7);
  Snapshot snapshot;
  uint64_t seed = 1;
  for (const NamedParameter& p : parameters(*model)) {
    torch::manual_seed(seed++);
    snapshot.held.push_back(at::randn(p.parameter.sizes()));
    snapshot.model.push_back(make_entry(p.path, snapshot.held.back()));
  }
  RunState state;
  state.config = config.schema().to_toml(&config, false);
  state.tokenizer = tokenizer ? *tokenizer : small_tokenizer(f);
  write_checkpoint(f / name / "checkpoints" / checkpoint_name(3), state, snapshot);
  return f / name;
}

inline const Values gpt{{"n_layer", int64_t{2}},
                        {"n_head", int64_t{2}},
                        {"n_embd", int64_t{8}},
                        {"block_size", int64_t{16}},
                        {"vocab_size", int64_t{259}}};

/// Returns `values` with a key set. The last value of a key counts.
inline Values with(Values values, const std::string& key, const ConfigValue& value) {
  values.emplace_back(key, value);
  return values;
}

/// Returns the bytes of model.safetensors in a run's newest checkpoint.
inline std::string model_bytes(const fs::path& run) {
  return slurp(find_checkpoint(run) / "model.safetensors");
}

inline const Values small_llama{{"n_layer", int64_t{2}},     {"n_head", int64_t{4}},
                                {"n_kv_head", int64_t{2}},   {"head_dim", int64_t{6}},
                                {"n_embd", int64_t{8}},      {"n_inner", int64_t{12}},
                                {"block_size", int64_t{16}}, {"vocab_size", int64_t{280}}};

}  // namespace lathe::test
