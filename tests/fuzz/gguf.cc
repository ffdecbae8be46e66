// Fuzzes GGUF files: the header, the values of tensors, the config and the tokenizer.
#include <cmath>

#include "core/io/gguf_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/gguf.h"
#include "train/formats/family.h"
#include "train/formats/gguf_tokenizer.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  using test::gguf_value;
  test::GGUFBytes bpe;
  bpe.values = {
      {"general.architecture", gguf_value("llama")},
      {"llama.block_count", gguf_value(1U)},
      {"llama.context_length", gguf_value(16U)},
      {"llama.embedding_length", gguf_value(32U)},
      {"llama.feed_forward_length", gguf_value(32U)},
      {"llama.attention.head_count", gguf_value(2U)},
      {"llama.attention.layer_norm_rms_epsilon", gguf_value(1e-5F)},
      {"llama.rope.scaling.type", gguf_value("yarn")},
      {"llama.rope.scaling.factor", gguf_value(4.0F)},
      {"llama.rope.scaling.attn_factor", gguf_value(1.1F)},
      {"llama.rope.scaling.original_context_length", gguf_value(8U)},
      {"tokenizer.ggml.model", gguf_value("gpt2")},
      {"tokenizer.ggml.pre", gguf_value("llama-bpe")},
      {"tokenizer.ggml.tokens", gguf_value(std::vector<std::string>{"a", "b", "ab", "<s>"})},
      {"tokenizer.ggml.token_type", gguf_value(std::vector<int32_t>{1, 1, 1, 3})},
      {"tokenizer.ggml.merges", gguf_value(std::vector<std::string>{"a b"})},
      {"tokenizer.ggml.bos_token_id", gguf_value(3U)},
      {"tokenizer.chat_template", gguf_value("{{ messages }}")}};
  for (const auto& [number, bytes] :
       {std::pair(0U, 128), {1U, 64}, {2U, 18}, {3U, 20}, {6U, 22}, {7U, 24}, {8U, 34}})
    bpe.tensors.push_back({.name = "t" + std::to_string(number),
                           .sizes = {32},
                           .type = number,
                           .bytes = std::string(static_cast<size_t>(bytes), '\1')});
  bpe.tensors.push_back(
      {.name = "rope_freqs.weight",
       .sizes = {4},
       .bytes = test::raw(1.0F) + test::raw(2.5F) + test::raw(8.0F) + test::raw(8.0F)});

  test::GGUFBytes sentencepiece;
  sentencepiece.version = 2;
  sentencepiece.values = {
      {"general.architecture", gguf_value("gpt2")},
      {"general.alignment", gguf_value(64U)},
      {"gpt2.block_count", gguf_value(1U)},
      {"gpt2.context_length", gguf_value(16U)},
      {"gpt2.embedding_length", gguf_value(32U)},
      {"gpt2.attention.head_count", gguf_value(2U)},
      {"tokenizer.ggml.model", gguf_value("llama")},
      {"tokenizer.ggml.tokens",
       gguf_value(std::vector<std::string>{"<unk>", "a", "b", "ab", "aab"})},
      {"tokenizer.ggml.token_type", gguf_value(std::vector<int32_t>{2, 1, 1, 1, 1})},
      {"tokenizer.ggml.scores", gguf_value(std::vector<float>{0, 0, 0, -1, -2})}};
  sentencepiece.alignment = 64;
  for (const auto& [number, bytes] : {std::pair(12U, 144), {13U, 176}, {14U, 210}})
    sentencepiece.tensors.push_back({.name = "t" + std::to_string(number),
                                     .sizes = {256},
                                     .type = number,
                                     .bytes = std::string(static_cast<size_t>(bytes), '\1')});
  return {bpe.bytes(), sentencepiece.bytes(), test::GGUFBytes{}.bytes()};
}
}  // namespace lathe::fuzz

volatile float sink = 0;  // keeps reads from being optimized away

namespace {

using namespace lathe;

void read_values(const GGUFFile& file, size_t size) {
  size_t bytes = 0;
  for (const TensorEntry& t : file.tensors()) {
    const GGUFType& type = *find_gguf_type(t.dtype);
    const auto blocks = static_cast<uint64_t>(t.numel() / type.elements);
    fuzz::must(blocks * type.bytes == t.bytes.size(), "a tensor's bytes match its shape");
    std::vector<float> values(static_cast<size_t>(t.numel()));
    read_blocks(type, t.bytes, values.data());
    for (const float x : values) sink = x;
    bytes += t.bytes.size();
    fuzz::must(file.find(t.name) == &t, "a tensor is found by its name");
  }
  fuzz::must(bytes <= size, "tensors lie in the file");
}

void read_config(const GGUFFile& file) {
  GGUFFacts facts{.architecture = "llama", .vocab_size = 300};
  if (const Json* name = file.find_value("general.architecture"); name && name->is_string())
    facts.architecture = name->get<std::string>();
  if (const TensorEntry* t = file.find("rope_freqs.weight"); t != nullptr) {
    facts.rope_divisors.resize(static_cast<size_t>(t->numel()));
    read_blocks(*find_gguf_type(t->dtype), t->bytes, facts.rope_divisors.data());
    for (const float x : facts.rope_divisors) {
      if (!std::isfinite(x)) facts.rope_divisors.clear();
      if (!std::isfinite(x)) break;
    }
  }
  const Family& family = family_of_gguf(facts.architecture, "here");
  ConfigKeys keys(file.metadata(), "here");
  const ModelKeys model = family.read_gguf(keys, facts, 0);
  fuzz::must(model.contains("n_layer") && model.contains("vocab_size"),
             "a config has the sizes of its model");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::MemoryFile memory;
  memory.write(fuzz::text_of(data, size));
  try {
    const GGUFFile file(memory.path());
    read_values(file, size);
    try {
      const Tokenizer tokenizer = read_gguf_tokenizer(file);
      tokenizer.decode(tokenizer.encode("ab aab"));
    } catch (const Error& e) {
      fuzz::must(e.code() == Exit::data, "an invalid tokenizer gives Exit::data");
    }
    read_config(file);
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::checkpoint, "an invalid file gives Exit::checkpoint");
  }
  return 0;
}
