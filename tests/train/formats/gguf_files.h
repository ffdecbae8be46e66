// Makes GGUF files of a small model without Lathe's code.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/tokenizers/chat_format.h"
#include "data/tokenizers/tokenizer.h"
#include "tests/support/gguf_blocks.h"

namespace lathe::test {

/// Returns the exit code and the message of the Error that `action` throws, or 0 and "" if it
/// throws nothing.
template <class F>
std::pair<int, std::string> outcome_of(F&& action) {
  try {
    action();
  } catch (const Error& e) {
    return {static_cast<int>(e.code()), e.what()};
  }
  return {0, ""};
}

/// The GGUF file of a Llama model with one layer. Its matrices have one GGUF type, and rows of 256
/// elements. It has a byte-level tokenizer.
struct LlamaFile {
  static constexpr uint64_t width = 256, vocabulary = 259;
  GGUFBytes file;
  std::map<std::string, std::vector<float>> values;  ///< the tensors' numbers, by name in the file

  explicit LlamaFile(const GGUFOracle& type, const std::string& architecture = "llama") {
    const auto key = [&](const char* name) { return architecture + "." + name; };
    file.values = {{"general.architecture", gguf_value(architecture)},
                   {"note.of_somebody", gguf_value("nothing")},
                   {key("block_count"), gguf_value(1U)},
                   {key("context_length"), gguf_value(16U)},
                   {key("embedding_length"), gguf_value(256U)},
                   {key("feed_forward_length"), gguf_value(256U)},
                   {key("attention.head_count"), gguf_value(4U)},
                   {key("attention.head_count_kv"), gguf_value(2U)},
                   {key("attention.layer_norm_rms_epsilon"), gguf_value(1e-5F)}};

    add_tokenizer();
    GGUFPacker packer(type.number + 1);
    // Only matrices have the type under test; vectors are float32.
    const auto& vector_type = gguf_oracles()[0];
    const auto add = [&](const std::string& name, std::vector<uint64_t> sizes) {
      const GGUFOracle& of = sizes.size() == 1 ? vector_type : type;
      uint64_t elements = 1;
      for (const uint64_t size : sizes) elements *= size;
      std::string bytes;
      std::vector<float>& all = values[name];
      while (all.size() < elements) {
        const GGUFBlock block = of.pack(packer);
        bytes += block.bytes;
        all.insert(all.end(), block.values.begin(), block.values.end());
      }
      file.tensors.push_back({.name = name, .sizes = sizes, .type = of.number, .bytes = bytes});
    };

    add("token_embd.weight", {width, vocabulary});
    add("output_norm.weight", {width});
    add("output.weight", {width, vocabulary});

    add("blk.0.attn_norm.weight", {width});
    add("blk.0.attn_q.weight", {width, width});
    add("blk.0.attn_k.weight", {width, width / 2});
    add("blk.0.attn_v.weight", {width, width / 2});
    add("blk.0.attn_output.weight", {width, width});

    add("blk.0.ffn_norm.weight", {width});
    add("blk.0.ffn_gate.weight", {width, width});
    add("blk.0.ffn_up.weight", {width, width});
    add("blk.0.ffn_down.weight", {width, width});
  }

  /// Adds a tokenizer: bytes in GPT-2's alphabet, two merges and a special token.
  void add_tokenizer() {
    std::vector<std::string> tokens(byte_alphabet().begin(), byte_alphabet().end());
    tokens.insert(tokens.end(), {"th", "the", "<|endoftext|>"});
    std::vector<int32_t> types(tokens.size(), 1);
    types.back() = 3;
    file.value("tokenizer.ggml.model") = gguf_value("gpt2");
    file.value("tokenizer.ggml.pre") = gguf_value("gpt-2");
    file.value("tokenizer.ggml.tokens") = gguf_value(tokens);
    file.value("tokenizer.ggml.token_type") = gguf_value(types);
    file.value("tokenizer.ggml.merges") = gguf_value(std::vector<std::string>{"t h", "th e"});
    file.value("tokenizer.ggml.eos_token_id") = gguf_value(258U);
    file.value("tokenizer.ggml.add_bos_token") = gguf_value(false);
    file.value("tokenizer.chat_template") = gguf_value(chatml_template);
  }
};

inline const GGUFOracle& float32() { return gguf_oracles()[0]; }

}  // namespace lathe::test
