// Tests of GGUF files that are inconsistent, or need a computation or a split of text that Lathe
// does not support. Each file is refused with an exit code and an error that names the fault, and
// the command leaves no files.
#include <cmath>
#include <functional>

#include "core/io/gguf_file.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"
#include "tests/train/formats/gguf_files.h"
#include "tests/train/formats/small_runs.h"
#include "train/commands/inspect.h"
#include "train/formats/gguf.h"
#include "train/formats/gguf_model.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// A GGUF file that a test changes and imports.
class FaultyFile {
 public:
  FaultyFile() : good_(float32()) {}

  fs::path path() const { return folder_ / "model.gguf"; }
  const TempFolder& folder() const { return folder_; }
  /// Writes the file after `edit` has changed it.
  void write(const std::function<void(GGUFBytes&)>& edit) {
    GGUFBytes file = good_.file;
    edit(file);
    write_file(path(), file.bytes());
  }
  /// Imports the file after `edit` has changed it. Checks that the import ends with `code`, that
  /// its error contains `facts`, and that it leaves no files.
  void refused(int code, const std::vector<std::string>& facts,
               const std::function<void(GGUFBytes&)>& edit, ImportOptions options = {}) {
    INFO(facts[0]);
    write(edit);
    options.folder = path();
    options.out = folder_ / "in/out";
    const auto [given, refusal] = outcome_of([&] { import_gguf(options); });
    CHECK(given == code);
    for (const std::string& fact : facts) CHECK_THAT(refusal, ContainsSubstring(fact));
    if (code != 2) CHECK_THAT(refusal, ContainsSubstring("model.gguf"));  // 2 concerns a flag
    CHECK((names(folder_.path()) == std::set<std::string>{"model.gguf"}));
  }
  /// Imports the file after `edit` has changed it, and returns the run's state.
  RunState imported(const std::function<void(GGUFBytes&)>& edit, ImportOptions options = {}) {
    write(edit);
    options.folder = path();
    options.out = folder_ / "run";
    const auto [code, refusal] = outcome_of([&] { import_gguf(options); });
    INFO(refusal);
    REQUIRE(code == 0);
    RunState state = read_state(find_checkpoint(folder_ / "run"));
    remove_tree(folder_ / "run");
    return state;
  }

 private:
  TempFolder folder_;
  LlamaFile good_;
};

TEST_CASE("a GGUF file with a wrong header is refused by all commands", "[gguf_faults]") {
  FaultyFile f;
  using File = GGUFBytes;
  f.imported([](File&) {});  // accepted
  const auto refused = [&](const std::string& what, const std::function<void(File&)>& edit) {
    f.refused(4, {what}, edit);
    for (const auto& command : {inspect, verify}) {
      const auto [code, refusal] = outcome_of([&] { command(f.path()); });
      CHECK(code == 4);
      CHECK_THAT(refusal, ContainsSubstring(what));
    }
  };
  refused("not a GGUF", [](File& g) { g.magic = "GGUX"; });
  refused("version 1", [](File& g) { g.version = 1; });
  refused("version 4", [](File& g) { g.version = 4; });
  refused("big-endian", [](File& g) { g.version = 0x03000000; });

  refused("cut short", [](File& g) { g.key_count = uint64_t{1} << 60; });
  refused("cut short", [](File& g) { g.tensor_count = ~uint64_t{0}; });
  refused("type 13", [](File& g) { g.value("llama.x") = raw(uint32_t{13}); });
  refused("cut short",
          [](File& g) { g.value("llama.x") = raw(uint32_t{8}) + raw(uint64_t{1} << 62); });
  refused("cut short", [](File& g) {
    g.value("llama.x") = raw(uint32_t{9}) + raw(uint32_t{0}) + raw(uint64_t{1} << 40);
  });
  refused("33554432", [](File& g) {
    const uint64_t count = (uint64_t{1} << 25) + 1;
    g.value("llama.x") = raw(uint32_t{9}) + raw(uint32_t{0}) + raw(count) + std::string(count, 'x');
  });
  refused("llama.x has lists nested", [](File& g) {
    std::string nested;
    for (int i = 0; i < 6; ++i) nested += raw(uint32_t{9}) + raw(uint64_t{1});
    g.value("llama.x") = raw(uint32_t{9}) + nested + raw(uint32_t{0}) + raw(uint64_t{0});
  });

  refused("llama.block_count twice",
          [](File& g) { g.values.emplace_back("llama.block_count", gguf_value(1U)); });
  refused("\"output.weight\" twice", [](File& g) { g.tensors.push_back(g.tensors[2]); });
  refused("ggml's type 10", [](File& g) { g.tensor("output.weight").type = 10; });
  refused("5 dimensions", [](File& g) { g.tensor("output.weight").sizes = {1, 1, 1, 1, 1}; });
  refused("\"output.weight\": its shape", [](File& g) {
    g.tensor("output.weight").sizes = {uint64_t{1} << 33, uint64_t{1} << 33};
  });
  refused("\"output.weight\": its shape",
          [](File& g) { g.tensor("output.weight").sizes = {~uint64_t{0}}; });
  refused("\"output.weight\": its shape", [](File& g) {
    g.tensor("output.weight").sizes = {0, uint64_t{1} << 40, uint64_t{1} << 40};
  });

  refused("rows of 259", [](File& g) {
    g.tensor("output.weight").sizes = {259, 256};
    g.tensor("output.weight").type = 8;
  });
  refused("\"output.weight\" is at byte 0 ", [](File& g) { g.tensor("output.weight").offset = 0; });
  refused(str("byte ", ~uint64_t{0} - 31),
          [](File& g) { g.tensors.back().offset = ~uint64_t{0} - 31; });
  refused("\"output.weight\" is at byte",
          [](File& g) { g.tensor("output_norm.weight").bytes += std::string(64, 'x'); });
  refused("cut short", [](File& g) {
    g.tensors.back().bytes.resize(100);
    g.padded_end = false;
  });
  refused("last tensor", [](File& g) { g.tensors.back().bytes += std::string(32, 'x'); });

  for (const uint32_t alignment : {0U, 24U, 0x80000000U})
    refused("general.alignment",
            [&](File& g) { g.value("general.alignment") = gguf_value(alignment); });
  refused("general.alignment", [](File& g) { g.value("general.alignment") = gguf_value("32"); });

  // The commands print no control character that comes from a file.
  f.write([](File& g) {
    g.tensor("output.weight").name = "a\x1b[31m";
    g.tensors.back().type = 99;
  });
  for (const char* command : {"inspect", "verify"}) {
    const Finished done = lathe_in(f.folder(), {command, "model.gguf"});
    CHECK(done.code == 4);
    CHECK((done.out + done.err).find('\x1b') == std::string::npos);
  }
  f.write([](File& g) { g.value("a\x1b[31m") = gguf_value("b\x1b[31m\nc"); });
  const Finished shown = lathe_in(f.folder(), {"inspect", "model.gguf"});
  CHECK(shown.code == 0);
  CHECK(shown.out.find('\x1b') == std::string::npos);
  CHECK_THAT(shown.out, ContainsSubstring("a\\x1b[31m = b\\x1b[31m\\x0ac"));
}

TEST_CASE("a GGUF file that is cut anywhere, or has any byte changed, is read or refused",
          "[gguf_faults]") {
  const TempFolder f;
  GGUFBytes small;
  small.values = {{"general.architecture", gguf_value("llama")},
                  {"a.list", gguf_value(std::vector<std::string>{"x", "yy"})},
                  {"a.number", gguf_value(1.5F)}};

  GGUFPacker packer(1);
  small.tensors = {{.name = "a",
                    .sizes = {32, 2},
                    .type = 8,
                    .bytes = packer.q8_0().bytes + packer.q8_0().bytes},
                   {.name = "b", .sizes = {3}, .bytes = std::string(12, '\0')}};
  const std::string bytes = small.bytes();
  const fs::path path = f / "x.gguf";

  const auto code = [&](const std::string& changed) {
    write_file(path, changed);
    const int verified = outcome_of([&] { verify(path); }).first;
    CHECK(outcome_of([&] { inspect(path); }).first <= verified);
    return verified;
  };
  REQUIRE(code(bytes) == 0);

  const size_t last = bytes.size() - 20;  // 12 bytes of the last tensor and 20 of padding
  for (size_t n = 0; n < bytes.size(); ++n) CHECK(code(bytes.substr(0, n)) == (n < last ? 4 : 0));

  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    for (const char by : {'\x01', '\x80', '\xFF'}) {
      changed[at] = static_cast<char>(bytes[at] ^ by);
      const int given = code(changed);
      CHECK((given == 0 || given == 4));
    }
  }
}

TEST_CASE(
    "a GGUF file whose model needs an unsupported computation is refused, and the error names the "
    "key",
    "[gguf_faults]") {
  FaultyFile f;
  using File = GGUFBytes;
  const auto key = [&](const std::string& name, const std::string& value, const std::string& what) {
    f.refused(4, {what}, [&](File& g) { g.value(name) = value; });
  };
  key("general.architecture", gguf_value("bert"), "general.architecture = \"bert\"");
  key("general.architecture", gguf_value(""), "general.architecture = \"\"");
  key("general.architecture", gguf_value(3U), "general.architecture is not a string");
  key("general.type", gguf_value("adapter"), "general.type = adapter");
  key("split.count", gguf_value(2U), "llama-gguf-split");
  key("llama.made_up", gguf_value(3U), "--ignore-key llama.made_up");
  key("llama.block_count", gguf_value(2U), "blk.1.attn_norm.weight");
  key("llama.block_count", gguf_value(0U), "llama.block_count");
  key("llama.block_count", gguf_value("1"), "llama.block_count");
  key("llama.attention.head_count", gguf_value(3U), "n_head");
  key("llama.attention.head_count_kv", gguf_value(std::vector<int32_t>{2}), "head_count_kv");
  key("llama.attention.head_count_kv", gguf_value(4U), "blk.0.attn_k.weight");
  key("llama.attention.key_length", gguf_value(32U), "blk.0.attn_q.weight");
  key("llama.attention.value_length", gguf_value(32U), "value_length = 32");
  key("llama.attention.layer_norm_rms_epsilon", gguf_value(NAN), "layer_norm_rms_epsilon");
  key("llama.attention.sliding_window", gguf_value(8U), "--block-size");
  key("llama.embedding_length", gguf_value(128U), "token_embd.weight");
  key("llama.expert_count", gguf_value(8U), "llama.expert_count = 8");
  key("llama.feed_forward_length", gguf_value(128U), "blk.0.ffn_gate.weight");
  key("llama.vocab_size", gguf_value(260U), "vocab_size = 260");
  key("llama.rope.dimension_count", gguf_value(32U), "rope.dimension_count = 32");
  key("llama.rope.scaling.type", gguf_value("longrope"), "scaling.type = \"longrope\"");
  key("llama.rope.scaling.type", gguf_value("linear"), "scaling.factor");
  f.refused(4, {"llama.context_length"}, [](File& g) { g.remove_value("llama.context_length"); });
  f.refused(4, {"no matrix", "token_embd.weight"},
            [](File& g) { g.remove_tensor("token_embd.weight"); });
  f.refused(4, {"lacks", "\"blk.0.ffn_up.weight\""},
            [](File& g) { g.remove_tensor("blk.0.ffn_up.weight"); });
  f.refused(4, {"\"blk.0.attn_q.bias\"", "belong"}, [](File& g) {
    g.tensors.push_back(
        {.name = "blk.0.attn_q.bias", .sizes = {256}, .bytes = std::string(1024, '\0')});
  });
  f.refused(2, {"--block-size = 17"}, [](File&) {}, {.block_size = 17});

  // A folder that only has a GGUF file is not a Hugging Face folder. The error names the file.
  const Finished folder = lathe_in(f.folder(), {"import", ".", "--out", "in/out"});
  CHECK(folder.code == 4);
  CHECK_THAT(folder.err, ContainsSubstring("config.json") && ContainsSubstring("model.gguf"));
  CHECK(lathe_in(f.folder(), {"import", "none.gguf", "--out", "in/out"}).code == 2);

  // Keys that don't matter, a shorter context and an ignored key are accepted.
  f.imported([](File& g) {
    g.value("llama.rope.scaling.type") = gguf_value("none");
    g.value("llama.rope.dimension_count") = gguf_value(64U);
    g.value("llama.rope.freq_base") = gguf_value(10000.0F);
    g.value("llama.vocab_size") = gguf_value(259U);
    g.value("llama.expert_count") = gguf_value(0U);
    g.value("llama.attention.sliding_window") = gguf_value(16U);
    g.value("llama.use_something") = gguf_value(false);
    g.value("split.count") = gguf_value(1U);
  });
  const RunState ignored = f.imported([](File& g) { g.value("llama.made_up") = gguf_value(3U); },
                                      {.block_size = 8, .ignored_keys = {"llama.made_up"}});
  CHECK(ignored.ignored_keys == std::vector<std::string>{"llama.made_up"});
  CHECK(model_context(saved_config(ignored, "")) == 8);
  f.refused(2, {"--ignore-key llama.block_count"}, [](File&) {},
            {.ignored_keys = {"llama.block_count"}});
}

TEST_CASE("a tokenizer in a GGUF file is read, or refused with an error that names the key",
          "[gguf_faults]") {
  FaultyFile f;
  using File = GGUFBytes;
  const auto key = [&](const std::string& name, const std::string& value, const std::string& what) {
    f.refused(3, {what}, [&](File& g) { g.value("tokenizer." + name) = value; });
    f.imported([&](File& g) { g.value("tokenizer." + name) = value; }, {.tokenizer = "none"});
  };
  std::vector<std::string> tokens(byte_alphabet().begin(), byte_alphabet().end());
  tokens.insert(tokens.end(), {"th", "the", "<|endoftext|>"});
  std::vector<int32_t> types(259, 1);
  types.back() = 3;
  const auto with_token = [&](size_t id, const std::string& token) {
    std::vector<std::string> changed = tokens;
    changed[id] = token;
    return gguf_value(changed);
  };
  key("ggml.model", gguf_value("bert"), "tokenizer.ggml.model = bert");
  key("ggml.model", gguf_value("none"), "--tokenizer none");
  key("ggml.model", gguf_value("llama"), "tokenizer.ggml.scores");
  key("ggml.model", gguf_value(1U), "tokenizer.ggml.model");
  key("ggml.pre", gguf_value("tekken"), "tokenizer.ggml.pre = tekken");
  key("ggml.tokens", gguf_value(3U), "tokenizer.ggml.tokens");
  key("ggml.tokens", with_token(257, "th"), "ids 256 and 257");
  key("ggml.tokens", with_token(256, "t h"), "t h");
  key("ggml.token_type", gguf_value(std::vector<int32_t>{1}), "1 types");
  key("ggml.merges", gguf_value(std::vector<std::string>{"t h", "th x y"}), "th x y");
  key("ggml.merges", gguf_value(std::vector<std::string>{"q z"}), "\"qz\"");
  key("ggml.merges", gguf_value("t h"), "merges");
  key("ggml.eos_token_id", gguf_value(259U), "eos_token_id = 259");
  key("ggml.eos_token_id", gguf_value("258"), "eos_token_id");
  key("ggml.add_bos_token", gguf_value(true), "add_bos_token");
  key("chat_template", gguf_value("\xFF"), "chat_template is not UTF-8");
  {
    // The model has no row for this token.
    std::vector<std::string> more = tokens;
    more.emplace_back("extra");
    std::vector<int32_t> more_types = types;
    more_types.push_back(4);
    f.refused(3, {"vocabulary of 259"}, [&](File& g) {
      g.value("tokenizer.ggml.tokens") = gguf_value(more);
      g.value("tokenizer.ggml.token_type") = gguf_value(more_types);
    });
  }

  // An unused token, a user-defined token and a BOS token are accepted. Ways to split text have the
  // names that llama.cpp uses.
  types[258] = 4;
  types[257] = 5;
  const RunState state = f.imported([&](File& g) {
    g.value("tokenizer.ggml.token_type") = gguf_value(types);
    g.value("tokenizer.ggml.merges") = gguf_value(std::vector<std::string>{"t h"});
    g.value("tokenizer.ggml.bos_token_id") = gguf_value(258U);
    g.value("tokenizer.ggml.add_bos_token") = gguf_value(true);
  });
  const BPEDefinition& d = state.tokenizer->bpe()->definition();
  CHECK(d.tokens[257].empty());
  CHECK((d.special ==
         std::vector<SpecialToken>{{.id = 258, .text = "<|endoftext|>", .special = false}}));
  CHECK(state.tokenizer->prompt_begin() == 258);
  const auto pre = [&](const char* name) {
    return f.imported([&](File& g) { g.value("tokenizer.ggml.pre") = gguf_value(name); })
        .tokenizer->bpe()
        ->definition();
  };
  CHECK(pre("llama-bpe").patterns == std::vector<std::string>{llama3_pattern});
  CHECK(pre("llama-bpe").whole_pieces);
  CHECK(pre("qwen2").nfc);
  CHECK(pre("smollm").patterns.size() == 2);
  CHECK(!pre("gpt-2").whole_pieces);
}

TEST_CASE("SentencePiece's merges are recovered from the scores", "[gguf_faults]") {
  const TempFolder f;
  for (const SpaceBefore rule : {SpaceBefore::none, SpaceBefore::each}) {
    BPEDefinition d = sentencepiece(rule);
    d.begin = 1;
    write_bpe(d, f / "tokenizer.json");

    const Tokenizer tokenizer = Tokenizer::bpe(f / "tokenizer.json");
    export_gguf({.run = make_run(f, "run", "llama", small_llama, tokenizer), .out = f / "gguf"});
    import_gguf({.folder = f / "gguf/model.gguf", .out = f / "again/run"});
    export_gguf({.run = f / "again/run", .out = f / "twice"});
    CHECK(slurp(f / "gguf/model.gguf") == slurp(f / "twice/model.gguf"));

    const Tokenizer again = *read_state(find_checkpoint(f / "again/run")).tokenizer;
    const BPEDefinition& read = again.bpe()->definition();
    CHECK(read.tokens == d.tokens);
    CHECK((read.special == d.special));
    CHECK(read.byte_tokens == d.byte_tokens);
    CHECK(read.space_before == rule);
    CHECK(read.begin == 1);

    for (const char* text : {"ab abc  ab\xC3\xA9", "a b", "  x", "</s>ab", "\n\xE2\x96\x81"}) {
      INFO(text);
      CHECK(again.encode(text) == tokenizer.encode(text));
    }

    for (const char* made : {"run", "gguf", "again", "twice"}) remove_tree(f / made);
  }
}

}  // namespace
