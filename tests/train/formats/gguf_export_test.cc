// Tests the rotary channels, the metadata and the tokens with scores of exported GGUF files. Reads
// the files as ggml's docs/gguf.md describes them, without Lathe's code.
#include <cstring>

#include "core/io/json.h"
#include "data/tokenizers/chat_template.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"
#include "tests/train/formats/small_runs.h"
#include "train/formats/gguf.h"
#include "train/formats/hugging_face.h"
#include "train/store/new_folder.h"
#include "train/tasks/generate.h"
#include "train/transforms/adapters.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Reads a GGUF file as ggml's docs/gguf.md describes it, without Lathe's code. All tensors must be
/// float32.
class GGUFReader {
 public:
  explicit GGUFReader(const fs::path& path) : bytes_(slurp(path)) {
    REQUIRE(bytes_.substr(0, 4) == "GGUF");
    at_ = 4;
    REQUIRE(number<uint32_t>() == 3);  // version of the format
    const auto tensor_count = number<uint64_t>(), key_count = number<uint64_t>();
    for (uint64_t i = 0; i < key_count; ++i) {
      const std::string key = text();
      REQUIRE(!metadata.contains(key));
      metadata[key] = value(number<uint32_t>());
    }

    struct Place {
      std::string name;
      std::vector<int64_t> sizes;
      uint64_t offset;
    };
    std::vector<Place> places;
    for (uint64_t i = 0; i < tensor_count; ++i) {
      Place place{.name = text(), .sizes = {}, .offset = 0};
      place.sizes.resize(number<uint32_t>());
      for (auto size = place.sizes.rbegin(); size != place.sizes.rend();
           ++size)  // the innermost dimension comes first
        *size = static_cast<int64_t>(number<uint64_t>());
      REQUIRE(number<uint32_t>() == 0);  // type 0 is float32
      place.offset = number<uint64_t>();
      places.push_back(place);
    }

    // The data of tensors begins at the next multiple of 32, and each tensor at a multiple of 32
    // within this data.
    const size_t begin = (at_ + 31) / 32 * 32;
    for (const Place& place : places) {
      INFO(place.name);
      at::Tensor t = at::empty(place.sizes);
      CHECK(place.offset % 32 == 0);
      REQUIRE(begin + place.offset + t.nbytes() <= bytes_.size());
      std::memcpy(t.mutable_data_ptr(), bytes_.data() + begin + place.offset, t.nbytes());
      REQUIRE(tensors.emplace(place.name, t).second);
    }
  }

  Json metadata = Json::object();
  std::map<std::string, at::Tensor> tensors;

 private:
  template <class T>
  T number() {
    REQUIRE(at_ + sizeof(T) <= bytes_.size());
    T x{};
    std::memcpy(&x, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return x;
  }
  std::string text() {
    const auto length = number<uint64_t>();
    REQUIRE(length <= bytes_.size() - at_);
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }
  Json value(uint32_t type) {
    if (type == 4) return number<uint32_t>();
    if (type == 5) return number<int32_t>();
    if (type == 6) return number<float>();
    if (type == 7) return number<uint8_t>() != 0;
    if (type == 8) return text();
    REQUIRE(type == 9);  // type 9 is a list
    const auto of = number<uint32_t>();
    Json list = Json::array();
    for (auto left = number<uint64_t>(); left > 0; --left) list.push_back(value(of));
    return list;
  }

  std::string bytes_;
  size_t at_ = 0;
};

/// Reorders the rows of heads with `width` rotary channels from halves to pairs: row i of a head's
/// first half becomes row 2i of the head, and row i of its second half becomes row 2i + 1.
at::Tensor rotary_pairs(const at::Tensor& rows, int64_t width) {
  at::Tensor pairs = at::zeros_like(rows);
  for (int64_t head = 0; head < rows.size(0); head += width) {
    for (int64_t i = 0; i < width / 2; ++i) {
      pairs[head + 2 * i] = rows[head + i];
      pairs[head + 2 * i + 1] = rows[head + width / 2 + i];
    }
  }
  return pairs;
}

TEST_CASE(
    "GGUF stores rotary channels of queries and keys in pairs for Llama, and in halves for Qwen",
    "[gguf_export]") {
  const TempFolder f;
  for (const bool is_qwen : {false, true}) {
    INFO(is_qwen);
    const fs::path run =
        make_run(f, is_qwen ? "qwen" : "llama", "llama", with(small_llama, "qkv_bias", is_qwen));
    export_gguf({.run = run, .out = f / (is_qwen ? "qwen-gguf" : "llama-gguf")});
    const GGUFReader file(f / (is_qwen ? "qwen-gguf" : "llama-gguf") / "model.gguf");
    const std::string arch = is_qwen ? "qwen2" : "llama";
    CHECK(file.metadata["general.architecture"] == arch);
    CHECK(file.metadata[arch + ".attention.head_count"] == 4);
    CHECK(file.metadata[arch + ".attention.head_count_kv"] == 2);
    CHECK(file.metadata[arch + ".rope.dimension_count"] == 6);

    // Each tensor of the run is in the file, and the file has no other tensor.
    std::map<std::string, std::string> names{{"tokens.weight", "token_embd.weight"},
                                             {"norm.weight", "output_norm.weight"},
                                             {"head.weight", "output.weight"}};
    const std::map<std::string, std::string> parts{
        {"norm1", "attn_norm"}, {"attn.q", "attn_q"},     {"attn.k", "attn_k"},
        {"attn.v", "attn_v"},   {"norm2", "ffn_norm"},    {"mlp.gate", "ffn_gate"},
        {"mlp.up", "ffn_up"},   {"mlp.down", "ffn_down"}, {"attn.proj", "attn_output"}};
    for (const char* block : {"0", "1"}) {
      for (const auto& [ours, theirs] : parts) {
        for (const char* kind : {".weight", ".bias"})
          names[std::string("blocks.") + block + "." + ours + kind] =
              std::string("blk.") + block + "." + theirs + kind;
      }
    }
    const SafetensorsFile ours(find_checkpoint(run) / "model.safetensors");
    CHECK(file.tensors.size() == ours.tensors().size());
    for (const TensorEntry& t : ours.tensors()) {
      INFO(t.name);
      at::Tensor wanted = entry_tensor(t, t.shape, "");
      const bool is_rotary = t.name.find("attn.q.") != std::string::npos ||
                             t.name.find("attn.k.") != std::string::npos;
      if (is_rotary && !is_qwen) {
        CHECK(!torch::equal(rotary_pairs(wanted, 6), wanted));
        wanted = rotary_pairs(wanted, 6);
      }
      const auto found = file.tensors.find(names.at(t.name));
      REQUIRE(found != file.tensors.end());
      CHECK(torch::equal(found->second, wanted));
    }
  }
}

TEST_CASE("an exported GGUF has the vocabulary size, and an end token for llama.cpp",
          "[gguf_export]") {
  const TempFolder f;
  const auto exported = [&](const Tokenizer& tokenizer, int64_t vocabulary) {
    for (const char* name : {"run", "gguf"}) fs::remove_all(f / name);
    const Values values = with(gpt, "vocab_size", vocabulary);
    export_gguf({.run = make_run(f, "run", "gpt", values, tokenizer), .out = f / "gguf"});
    return GGUFReader(f / "gguf" / "model.gguf").metadata;
  };
  CHECK(exported(Tokenizer::byte(), 256)["gpt2.vocab_size"] == 256);
  // If a file has no eos_token_id, llama.cpp takes token 11 as the end token.
  const Json chat = exported(byte_tokenizer_with({"<|im_start|>", "<|im_end|>"}), 258);
  CHECK(chat["tokenizer.ggml.eos_token_id"] == 257);
}

TEST_CASE("GGUF has SentencePiece's tokens with scores in the order of their merges",
          "[gguf_export]") {
  const TempFolder f;
  BPEDefinition d = sentencepiece(SpaceBefore::each);
  const auto id = [&](const std::string& token) {  // the last match: the first may be a byte
    return static_cast<int32_t>(d.tokens.rend() -
                                std::find(d.tokens.rbegin(), d.tokens.rend(), token) - 1);
  };
  d.tokens.emplace_back("bc");
  d.merges.emplace_back(id("b"), id("c"));
  d.merges.emplace_back(id("a"), id("bc"));  // "abc" again; only its first merge counts
  d.begin = 1;
  write_bpe(d, f / "tokenizer.json");
  const fs::path run =
      make_run(f, "run", "llama", small_llama, Tokenizer::bpe(f / "tokenizer.json"));
  export_gguf({.run = run, .out = f / "gguf"});
  const GGUFReader file(f / "gguf" / "model.gguf");

  // The vocabulary has 3 special tokens, 256 bytes, 5 characters, 6 tokens of merges, and padding.
  // llama.cpp merges the neighbors whose token has the highest score, so scores fall from merge to
  // merge.
  enum : int { normal = 1, unknown = 2, control = 3, unused = 5, byte = 6 };
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int> types{unknown, control, control};
  std::vector<float> scores(259, 0);
  for (int i = 0; i < 256; ++i) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", i);
    tokens.emplace_back(name);
    types.push_back(byte);
  }
  const std::string space = "\xE2\x96\x81";
  for (const std::string& character :
       {space, std::string("a"), std::string("b"), std::string("c"), std::string("\xC3\xA9")}) {
    tokens.push_back(character);
    types.push_back(normal);
    scores.push_back(0);
  }
  for (const std::string& made : {std::string("ab"), space + space, space + "ab",
                                  std::string("abc"), space + "ab\xC3\xA9", std::string("bc")}) {
    tokens.push_back(made);
    types.push_back(normal);
    scores.push_back(scores.back() - 1);
  }
  for (int i = 270; i < 280; ++i) {
    tokens.push_back("[PAD" + std::to_string(i) + "]");
    types.push_back(unused);
    scores.push_back(0);
  }
  const auto key = [&](const std::string& name) {
    return file.metadata.at("tokenizer.ggml." + name);
  };
  CHECK(key("model") == "llama");
  CHECK(key("tokens") == Json(tokens));
  CHECK(key("token_type") == Json(types));
  CHECK(key("scores") == Json(scores));
  CHECK(key("unknown_token_id") == 0);
  CHECK(key("bos_token_id") == 1);
  CHECK(key("eos_token_id") == 2);
  CHECK(key("add_bos_token") == true);
  CHECK(key("add_space_prefix") == true);
}

}  // namespace
