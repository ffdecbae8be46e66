// Models of other programs: what goes out comes in again, and a folder that lies is refused by name
// and leaves nothing.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "core/dtype.h"
#include "core/io/json.h"
#include "data/tokenizers/chat_template.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"
#include "tests/train/formats/small_runs.h"
#include "train/formats/gguf.h"
#include "train/formats/hugging_face.h"
#include "train/formats/source.h"
#include "train/session/load.h"
#include "train/store/new_folder.h"
#include "train/tasks/generate.h"
#include "train/transforms/adapters.h"

namespace {

using namespace lathe;
using namespace lathe::test;

void round_trip(const TempFolder& f, const std::string& kind, const Values& values) {
  const fs::path run = make_run(f, "run", kind, values);
  export_hugging_face({.run = run, .out = f / "hf"});
  import_hugging_face({.folder = f / "hf", .out = f / "again"});
  CHECK(model_bytes(run) == model_bytes(f / "again"));
  const RunState a = read_state(find_checkpoint(run)), b = read_state(find_checkpoint(f / "again"));
  CHECK(*a.tokenizer == *b.tokenizer);
  const RunConfig was = saved_config(a, run), is = saved_config(b, run);
  for (const Field& key : was.schema().fields()) {
    INFO(key.key);
    if (key.key.starts_with("model.") && key.key != "model.init")
      CHECK(toml_text(was.schema().get(&was, key)) == toml_text(is.schema().get(&is, key)));
  }
  CHECK(names(f.path()).size() == 4);  // tokenizer.json, run, hf, again: nothing unfinished
  for (const char* name : {"run", "hf", "again"}) remove_tree(f / name);
}

TEST_CASE("a run goes out as a Hugging Face folder and comes in with the same bytes", "[formats]") {
  const TempFolder f;
  round_trip(f, "gpt", gpt);
  round_trip(f, "gpt", with(with(gpt, "tie_weights", false), "dropout", 0.25));
}

TEST_CASE("a GPT without biases goes out with zeros", "[formats]") {
  const TempFolder f;
  const fs::path run = make_run(f, "run", "gpt", with(gpt, "bias", false));
  export_hugging_face({.run = run, .out = f / "hf"});
  import_hugging_face({.folder = f / "hf", .out = f / "again"});
  const SafetensorsFile was(find_checkpoint(run) / "model.safetensors"),
      is(find_checkpoint(f / "again") / "model.safetensors");
  CHECK(is.tensors().size() > was.tensors().size());
  for (const TensorEntry& t : is.tensors()) {
    INFO(t.name);
    const at::Tensor now = entry_tensor(t, t.shape, "");
    if (was.find(t.name) != nullptr) {
      CHECK(torch::equal(now, entry_tensor(was.at(t.name), t.shape, "")));
    } else {
      CHECK(now.abs().sum().item<double>() == 0);
    }
  }
}

TEST_CASE("matrices are written in the requested dtype and keep it", "[formats]") {
  const TempFolder f;
  const fs::path run = make_run(f, "run", "gpt", gpt);
  for (const char* dtype : {"bf16", "fp16"}) {
    const fs::path hf = f / (std::string("hf-") + dtype), again = f / (std::string("run-") + dtype);
    export_hugging_face({.run = run, .out = hf, .dtype = dtype});
    import_hugging_face({.folder = hf, .out = again});
    const SafetensorsFile file(find_checkpoint(again) / "model.safetensors");
    CHECK(file.at("tokens.weight").dtype == (dtype == std::string("bf16") ? "BF16" : "F16"));
    CHECK(file.at("norm.weight").dtype == "F32");
  }
  import_hugging_face({.folder = f / "hf-bf16", .out = f / "short", .block_size = 5});
  CHECK(SafetensorsFile(find_checkpoint(f / "short") / "model.safetensors")
            .at("positions.weight")
            .shape[0] == 5);
  CHECK_THAT(error_of([&] {
               import_hugging_face({.folder = f / "hf-bf16", .out = f / "x", .block_size = 17});
             }),
             ContainsSubstring("--block-size = 17"));
  CHECK_THAT(error_of([&] { export_hugging_face({.run = run, .out = f / "short"}); }),
             ContainsSubstring("is there already"));
}

TEST_CASE("of two exports or imports to one folder at a time, one writes and the other ends with 8",
          "[formats]") {
  const TempFolder f;
  make_run(f, "run", "gpt", gpt);
  export_hugging_face({.run = f / "run", .out = f / "hf"});
  const auto before = names(f.path());

  const std::vector<std::vector<std::string>> commands{
      {"export", "run", "--out", "out"},
      {"export", "run", "--format", "gguf", "--out", "out/"},
      {"import", "hf", "--out", "out"}};
  for (const auto& command : commands) {
    INFO(command[0] << " " << command[2]);
    {
      const NewFolder other(f / "out");
      const Finished done = lathe_in(f, command);
      CHECK(done.code == 8);
      CHECK_THAT(done.err, ContainsSubstring("out is in use: another lathe command writes there"));
      CHECK(fs::exists(other.path()));
    }
    CHECK(names(f.path()) == before);
    CHECK(lathe_in(f, command).code == 0);
    remove_tree(f / "out");
    CHECK(names(f.path()) == before);
  }
}

TEST_CASE("an export or import that was interrupted or killed leaves nothing that stays",
          "[formats]") {
  const TempFolder f;
  make_run(f, "run", "gpt", gpt);
  export_hugging_face({.run = f / "run", .out = f / "hf"});
  export_gguf({.run = f / "run", .out = f / "gguf"});
  auto before = names(f.path());

  const std::vector<std::vector<std::string>> commands{
      {"export", "run", "--out", "a/out"},
      {"export", "run", "--format", "gguf", "--out", "a/out"},
      {"import", "hf", "--out", "a/out"},
      {"import", "gguf/model.gguf", "--out", "a/out"}};
  for (const auto& command : commands) {
    for (const char* point : {"new folder: created 1", "new folder: written 1"}) {
      INFO(command[0] << " " << command[2] << ", " << point);
      const Finished stopped =
          run({"lathe_faults", command, f.path(), {{"LATHE_TEST_STOP", point}}});
      CHECK(stopped.code == 75);
      CHECK_THAT(stopped.err, ContainsSubstring("nothing is left in a/out"));
      CHECK(names(f.path()) == before);

      REQUIRE(run({"lathe_faults", command, f.path(), {{"LATHE_TEST_KILL", point}}}).code ==
              128 + 9);
      CHECK((names(f / "a") == std::set<std::string>{".unfinished-out"}));
      CHECK(lathe_in(f, command).code == 0);
      CHECK((names(f / "a") == std::set<std::string>{"out"}));
      remove_tree(f / "a");
    }

    // Killed once the folder has its name: what is left beside it goes with the next command that
    // names it.
    REQUIRE(run({"lathe_faults", command, f.path(), {{"LATHE_TEST_KILL", "new folder: renamed 1"}}})
                .code == 128 + 9);
    const auto written = names(f / "a/out");
    remove_tree(f / "a/out");
    CHECK(lathe_in(f, command).code == 0);
    CHECK((names(f / "a") == std::set<std::string>{"out"}));
    CHECK(names(f / "a/out") == written);
    remove_tree(f / "a");
  }
}

TEST_CASE("a run may be imported to a path that is not UTF-8", "[formats]") {
  const TempFolder f;
  export_hugging_face({.run = make_run(f, "run", "gpt", gpt), .out = f / "hf"});
  REQUIRE(lathe_in(f, {"import", "hf", "--out", "\xE9t\xE9"}).code == 0);
  CHECK(model_bytes(f / "\xE9t\xE9") == model_bytes(f / "run"));
  CHECK(lathe_in(f, {"generate", "\xE9t\xE9", "--tokens", "2"}).code == 0);
  CHECK(lathe_in(f, {"compare", "\xE9t\xE9", "\xE9t\xE9"}).code == 0);
}

TEST_CASE("a new folder does not replace what another program left under its first name",
          "[formats]") {
  const TempFolder f;
  const fs::path theirs = f / ".unfinished-mine";
  const auto refused = [&] {
    CHECK_THAT(error_of([&] { const NewFolder folder(f / "mine"); }),
               ContainsSubstring(".unfinished-mine was not left by lathe"));
    CHECK((names(f.path()) == std::set<std::string>{".unfinished-mine"}));
  };
  write_file(theirs, "a file");
  refused();
  CHECK(slurp(theirs) == "a file");
  fs::remove(theirs);

  // Names that commands use, but not together with the lock file.
  fs::create_directories(theirs / "unfinished");
  refused();
  fs::remove(theirs / "unfinished");
  write_file(theirs / ".unfinished-lock", "");
  write_file(theirs / "notes.txt", "mine");
  refused();
  CHECK(slurp(theirs / "notes.txt") == "mine");
  fs::remove_all(theirs);

  fs::create_directories(f / "elsewhere");
  fs::create_directory_symlink("elsewhere", theirs);
  CHECK_THAT(error_of([&] { const NewFolder folder(f / "mine"); }),
             ContainsSubstring("was not left by lathe"));
}

/// What an import says of the folder `hf` once `edit` has changed it. It must leave nothing.
std::string refusal(const TempFolder& f, const fs::path& hf,
                    const std::function<void(const fs::path&)>& edit) {
  fs::copy(hf, f / "lie", fs::copy_options::recursive);
  edit(f / "lie");
  const auto before = names(f.path());
  const std::string what =
      error_of([&] { import_hugging_face({.folder = f / "lie", .out = f / "in" / "out"}); });
  if (!what.empty()) CHECK(names(f.path()) == before);
  remove_tree(f / "in");
  remove_tree(f / "lie");
  return what;
}

std::function<void(const fs::path&)> config_with(const std::string& key, const Json& value) {
  return [=](const fs::path& folder) {
    Json config = Json::parse(slurp(folder / "config.json"));
    config[key] = value;
    write_file(folder / "config.json", config.dump());
  };
}

/// Writes model.safetensors again with its tensors changed.
std::function<void(const fs::path&)> tensors_with(
    const std::function<void(std::map<std::string, at::Tensor>&)>& edit) {
  return [=](const fs::path& folder) {
    std::map<std::string, at::Tensor> tensors;
    {
      const SafetensorsFile file(folder / "model.safetensors");
      for (const TensorEntry& t : file.tensors())
        tensors[t.name] = entry_tensor(t, t.shape, "").clone();
    }
    edit(tensors);
    std::vector<TensorEntry> entries;
    for (const auto& [name, t] : tensors) entries.push_back(make_entry(name, t));
    write_safetensors(folder / "model.safetensors", entries);
  };
}

/// Splits model.safetensors into two files with an index, which `edit` changes.
std::function<void(const fs::path&)> sharded(const std::function<void(Json& map)>& edit) {
  return [=](const fs::path& folder) {
    Json map = Json::object();
    {
      const SafetensorsFile file(folder / "model.safetensors");
      std::vector<TensorEntry> parts[2];
      for (const TensorEntry& t : file.tensors()) {
        const bool second = t.name > "transformer.h.1";
        parts[second].push_back(t);
        map[t.name] = second ? "b.safetensors" : "a.safetensors";
      }
      write_safetensors(folder / "a.safetensors", parts[0]);
      write_safetensors(folder / "b.safetensors", parts[1]);
    }
    fs::remove(folder / "model.safetensors");
    edit(map);
    write_file(folder / "model.safetensors.index.json",
               Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  };
}

TEST_CASE("a Hugging Face folder that lies, or computes otherwise, is refused by name",
          "[formats]") {
  const TempFolder f;
  export_hugging_face({.run = make_run(f, "run", "gpt", gpt), .out = f / "hf"});
  const auto says = [&](const std::function<void(const fs::path&)>& edit, const std::string& what) {
    INFO(what);
    CHECK_THAT(refusal(f, f / "hf", edit), ContainsSubstring(what));
  };
  // Controls: the folder as it is, sharded, and with what changes nothing.
  const auto nothing = [](const fs::path&) {};
  CHECK(refusal(f, f / "hf", nothing).empty());
  CHECK(refusal(f, f / "hf", sharded([](Json&) {})).empty());
  CHECK(refusal(f, f / "hf", config_with("n_inner", 32)).empty());
  CHECK(refusal(f, f / "hf", config_with("made_up", nullptr)).empty());
  CHECK(refusal(f, f / "hf", tensors_with([](auto& t) {
                  t["transformer.h.0.attn.bias"] = torch::ones({1, 1, 16, 16});
                  t["lm_head.weight"] = t["transformer.wte.weight"];
                }))
            .empty());

  says(config_with("n_inner", 31), "n_inner = 31");
  says(config_with("activation_function", "relu"), "activation_function = \"relu\"");
  says(config_with("layer_norm_epsilon", 1e-6), "layer_norm_epsilon");
  says(config_with("scale_attn_weights", false), "scale_attn_weights = false");
  says(config_with("scale_attn_by_inverse_layer_idx", true),
       "scale_attn_by_inverse_layer_idx = true");
  says(config_with("add_cross_attention", true), "add_cross_attention = true");
  says(config_with("rotary_pct", 0.25), "rotary_pct = 0.25");
  says(config_with("model_type", "bert"), "model_type = \"bert\"");
  says(config_with("n_head", 3), "n_head");
  says(config_with("n_head", "2"), "n_head");
  says(config_with("n_layer", 0), "n_layer");
  says(config_with("n_layer", 3), "transformer.h.2.ln_1.weight");
  says(config_with("n_layer", 1), "transformer.h.1.");
  says(config_with("n_embd", 4), "transformer.wte.weight");
  says(config_with("vocab_size", 260), "transformer.wte.weight");
  says(config_with("n_positions", 17), "transformer.wpe.weight");
  says(config_with("tie_word_embeddings", false), "lm_head.weight");
  says([](const fs::path& p) { fs::remove(p / "config.json"); }, "has no config.json");
  says([](const fs::path& p) { write_file(p / "config.json", "[]"); }, "model_type");
  says([](const fs::path& p) { fs::remove(p / "model.safetensors"); },
       "has neither model.safetensors nor");
  says([](const fs::path& p) { fs::resize_file(p / "model.safetensors", 5000); },
       "outside the file's");
  says([](const fs::path& p) { fs::remove(p / "tokenizer.json"), fs::remove(p / "vocab.json"); },
       "--tokenizer none");
  says(
      [](const fs::path& p) {
        Json j = Json::parse(slurp(p / "tokenizer.json"));
        j["added_tokens"][0]["id"] = 259;
        write_file(p / "tokenizer.json", j.dump());
      },
      "a vocabulary of 259");
  says(tensors_with([](auto& t) { t.erase("transformer.ln_f.bias"); }),
       "lacks the tensor \"transformer.ln_f.bias\"");
  says(tensors_with([](auto& t) { t["score.weight"] = torch::ones({2, 8}); }), "score.weight");
  says(tensors_with([](auto& t) {
         t["transformer.wte.weight"] = t["transformer.wte.weight"].to(at::kDouble);
       }),
       "is F64");
  says(tensors_with([](auto& t) {
         at::Tensor& w = t["transformer.h.0.mlp.c_fc.weight"];
         w = w.t().contiguous();
       }),
       "must be [8,32]");
  says(tensors_with([](auto& t) { t["transformer.wpe.weight"][1][1] = std::nan(""); }),
       "not finite");
  says(tensors_with([](auto& t) { t["lm_head.weight"] = t["transformer.wte.weight"] + 1; }),
       "tie_word_embeddings");
  says(tensors_with([](auto& t) { t["wpe.weight"] = t["transformer.wpe.weight"] + 1; }),
       "\"wpe.weight\" does not belong");
  says(sharded([](Json& map) { map["transformer.wte.weight"] = "c.safetensors"; }),
       "c.safetensors, which is not there");
  says(sharded([](Json& map) { map["transformer.wte.weight"] = "a.safetensors"; }),
       "is to be in a.safetensors, and is not");
  says(sharded([](Json& map) { map["transformer.wte.weight"] = "../a.safetensors"; }),
       "must be the name of");
  says(sharded([](Json& map) { map.erase("transformer.wte.weight"); }),
       "does not name \"transformer.wte.weight\"");
  says(sharded([](Json& map) { map["made_up"] = "a.safetensors"; }), "\"made_up\" is to be in");
}

TEST_CASE("export refuses what has no family, and float16 what it cannot hold", "[formats]") {
  const TempFolder f;
  const Values rnn{{"vocab_size", int64_t{259}}, {"block_size", int64_t{8}}};
  const fs::path run = make_run(f, "rnn", "rnn", rnn);
  CHECK_THAT(error_of([&] { export_hugging_face({.run = run, .out = f / "hf"}); }),
             ContainsSubstring("kind rnn can't be exported"));
  CHECK(!fs::exists(f / "hf"));
  CHECK_THAT(error_of([&] { export_hugging_face({.run = run, .out = f / "hf", .average = true}); }),
             ContainsSubstring("optim.ema_decay is 0"));
}

/// A GGUF file as its description in ggml's docs/gguf.md has it, read without Lathe's code.
class GGUFReader {
 public:
  explicit GGUFReader(const fs::path& path) : bytes_(slurp(path)) {
    REQUIRE(bytes_.substr(0, 4) == "GGUF");
    at_ = 4;
    REQUIRE(number<uint32_t>() == 3);  // the version
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
           ++size)  // the innermost comes first
        *size = static_cast<int64_t>(number<uint64_t>());
      REQUIRE(number<uint32_t>() == 0);  // float32
      place.offset = number<uint64_t>();
      places.push_back(place);
    }

    // The data of tensors begins at the next multiple of 32, and so does each tensor's in it.
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
    REQUIRE(type == 9);  // a list
    const auto of = number<uint32_t>();
    Json list = Json::array();
    for (auto left = number<uint64_t>(); left > 0; --left) list.push_back(value(of));
    return list;
  }

  std::string bytes_;
  size_t at_ = 0;
};

/// Rows of heads of `width` rotary channels, from halves to pairs: channel i of the first half of a
/// head becomes row 2i of it, and channel i of the second half row 2i + 1.
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
    "GGUF has the rotary channels of queries and keys in pairs for Llama, and in halves for Qwen",
    "[formats]") {
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

    // Each tensor of the run is in the file, and no other.
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

TEST_CASE("GGUF has SentencePiece's tokens with scores in the order of their merges", "[formats]") {
  const TempFolder f;
  BPEDefinition d = sentencepiece(SpaceBefore::each);
  const auto id = [&](const std::string& token) {  // the last: of one byte the character
    return static_cast<int32_t>(d.tokens.rend() -
                                std::find(d.tokens.rbegin(), d.tokens.rend(), token) - 1);
  };
  d.tokens.emplace_back("bc");
  d.merges.emplace_back(id("b"), id("c"));
  d.merges.emplace_back(id("a"), id("bc"));  // "abc" again, whose first merge counts
  d.begin = 1;
  write_bpe(d, f / "tokenizer.json");
  const fs::path run =
      make_run(f, "run", "llama", small_llama, Tokenizer::bpe(f / "tokenizer.json"));
  export_gguf({.run = run, .out = f / "gguf"});
  const GGUFReader file(f / "gguf" / "model.gguf");

  // 3 special tokens, 256 bytes, 5 characters, 6 tokens of merges, and what fills the vocabulary
  // up. llama.cpp merges the neighbors whose token has the highest score, so scores fall from merge
  // to merge.
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

double first_loss(const fs::path& run) {
  std::istringstream lines(slurp(run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    if (json.contains("val_loss")) return json["val_loss"].get<double>();
  }
  return -1;
}

TEST_CASE("a run starts from another's weights, and goes on without them", "[formats]") {
  const TempFolder f;
  make_tiny_run(f.path());
  REQUIRE(lathe_in(
              f, {"train", "tiny.toml", "--train.out_dir=a", "--train.steps=12", "--optim.lr=0.01"})
              .code == 0);
  const double end = *read_state(find_checkpoint(f / "a")).val_loss;
  // Without the model's keys, which come from the run.
  write_file(f / "tune.toml",
             "[data]\ndir = \"data\"\n[train]\nsteps = 2\nbatch_size = 3\neval_interval = "
             "2\neval_batches = 3\nthreads = 1\n");
  const auto tune = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "tune.toml", "--train.out_dir=" + out});
    return lathe_in(f, more);
  };
  REQUIRE(tune("b", {"--train.init_from=a"}).code == 0);
  CHECK(std::abs(first_loss(f / "b") - end) < 1e-9);
  CHECK(first_loss(f / "a") > end + 0.1);  // control: random weights are far from it
  REQUIRE(tune("c", {"--train.init_from=a/checkpoints/step-00000010"}).code == 0);
  CHECK(first_loss(f / "c") != end);
  // Verbs that train without a run folder take the source's model too: the config alone has no
  // sizes of it.
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"profile", "tune.toml", "--steps=0:1"},
        {"find", "lr", "tune.toml", "--steps=10"},
        {"bench", "step", "tune.toml"}}) {
    std::vector<std::string> words = command;
    words.emplace_back("--train.init_from=a");
    const Finished done = lathe_in(f, words);
    INFO(words[0] << done.err);
    CHECK(done.code == 0);
    words.emplace_back("--model.n_embd=48");
    CHECK_THAT(lathe_in(f, words).err, ContainsSubstring("model.n_embd"));  // it is the source's
  }

  const auto refused = [&](const std::vector<std::string>& more, int code,
                           const std::string& what) {
    const Finished done = tune("x", more);
    CHECK(done.code == code);
    CHECK_THAT(done.err, ContainsSubstring(what));
    CHECK(!fs::exists(f / "x"));
  };
  refused({"--train.init_from=a", "--model.n_layer=3"}, 2,
          "model.n_layer = 3, but train.init_from has 2");
  refused({"--train.init_from=none"}, 4, "train.init_from: none is neither a run");
  write_file(f / "other.txt", "0123456789 other letters than before XYZ " + sample_text(5000));
  REQUIRE(lathe_in(f, {"prepare", "other.txt", "--out", "other", "--tokenizer", "char"}).code == 0);
  refused({"--train.init_from=a", "--data.dir=other"}, 3, "made with another tokenizer");

  // Adapters stand on what init_from names.
  REQUIRE(tune("d", {"--train.init_from=a", "--adapters.rank=2"}).code == 0);
  CHECK(std::abs(first_loss(f / "d") - end) < 1e-6);
  CHECK(read_state(find_checkpoint(f / "d")).config.find("base = \"a\"") != std::string::npos);
  refused({"--train.init_from=a", "--adapters.rank=2", "--adapters.base=b"}, 2,
          "has no effect beside adapters.base");

  fs::rename(f / "a", f / "gone");
  const Finished on = tune("b", {"--train.init_from=a", "--train.steps=4"});
  INFO(on.err);
  CHECK(on.code == 0);
  CHECK(read_state(find_checkpoint(f / "b")).step == 4);
}

TEST_CASE("a given key of [model] agrees with the source of the weights, or is refused",
          "[formats]") {
  const TempFolder f;
  const Values llama{{"n_layer", int64_t{2}},     {"n_head", int64_t{3}},
                     {"n_embd", int64_t{24}},     {"n_kv_head", int64_t{1}},
                     {"block_size", int64_t{32}}, {"dropout", 0.25},
                     {"vocab_size", int64_t{259}}};
  make_run(f, "source", "llama", llama);
  const std::string source = (f / "source").string();

  // The config's kind is gpt unless it is given; the source's is llama.
  const auto resolve = [&](const std::string& text, Overrides more, const char* by) {
    write_file(f / "c.toml", text);
    more.insert(more.end(), {{by, source}, {"train.out_dir", (f / "new").string()}});
    if (by == std::string("adapters.base")) more.emplace_back("adapters.rank", "2");
    LoadedConfig loaded = load_config((f / "c.toml").string(), more);
    resolve_init_from(loaded);
    resolve_adapter_base(loaded);
    return loaded.config;
  };
  for (const char* by : {"train.init_from", "adapters.base"}) {
    INFO(by);
    const auto refused = [&](const std::string& text, const Overrides& more,
                             const std::string& what) {
      CHECK_THAT(error_of([&] { resolve(text, more, by); }), ContainsSubstring(what));
    };
    for (const char* kind : {"", "[model]\nkind = \"llama\"\n"}) {
      refused(kind, {{"model.n_layer", "5"}}, "command line: model.n_layer = 5, but ");
      refused(kind, {{"model.block_size", "16"}}, "command line: model.block_size = 16, but ");
      refused(kind, {{"model.n_kv_head", "3"}}, "command line: model.n_kv_head = 3, but ");
    }
    refused("[model]\nn_layer = 5\n", {}, "c.toml:2:1: model.n_layer = 5, but ");
    refused("[model]\nbias = false\n", {}, "c.toml:2:1: model.bias is not a key of model.kind");
    refused("[model]\nkind = \"gpt\"\n", {}, "c.toml:2:1: model.kind = \"gpt\", but ");
    refused("", {{"model.n_lyer", "5"}}, "there is no key model.n_lyer");
    refused("", {{"model.n_kv_head", "x"}}, "command line: --model.n_kv_head=x: ");
    setenv("LATHE_MODEL_QK_NORM", "true", 1);
    refused("", {}, "LATHE_MODEL_QK_NORM: model.qk_norm = true, but ");
    unsetenv("LATHE_MODEL_QK_NORM");

    // Controls: what agrees passes, also where the other keys' defaults would contradict it.
    for (const char* kind : {"", "[model]\nkind = \"llama\"\n"}) {
      const RunConfig c = resolve(
          kind, {{"model.n_head", "3"}, {"model.n_kv_head", "1"}, {"model.vocab_size", "0"}}, by);
      CHECK(c.model.kind == "llama");
      CHECK(*c.model.own.find<int64_t>("n_embd") == 24);
      CHECK(*c.model.own.find<int64_t>("vocab_size") == 259);
      CHECK(*c.model.own.find<double>("dropout") == 0);  // the config's own
      CHECK(*resolve(kind, {{"model.dropout", "0.5"}}, by).model.own.find<double>("dropout") ==
            0.5);
    }
  }
  CHECK_THAT(error_of([&] {
               write_file(f / "c.toml", "");
               load_config((f / "c.toml").string(), {{"model.n_kv_head", "3"}});
             }),
             ContainsSubstring("is a key of model.kind = \"llama\", and this model's is \"gpt\""));
}

TEST_CASE("windows of training may be shorter than the context, which stays", "[formats]") {
  const TempFolder f;
  make_run(f, "source", "gpt", with(gpt, "block_size", int64_t{4096}));
  write_file(f / "few.txt", sample_text(3000));
  REQUIRE(lathe_in(f, {"prepare", "few.txt", "--out", "data", "--tokenizer", "source"}).code == 0);
  write_file(f / "tune.toml",
             "[data]\ndir = \"data\"\n[train]\nsteps = 3\nbatch_size = 2\neval_interval = 3\n"
             "eval_batches = 0\nthreads = 1\ninit_from = \"source\"\n");
  const auto tune = [&](std::vector<std::string> more, const std::string& command = "train") {
    more.insert(more.begin(), {command, "tune.toml"});
    return lathe_in(f, more);
  };

  // Control: the context is longer than the text.
  const Finished long_one = tune({});
  CHECK(long_one.code == 3);
  CHECK_THAT(long_one.err, ContainsSubstring("data.window"));

  const Finished done = tune({"--data.window=8"});
  INFO(done.err);
  REQUIRE(done.code == 0);
  const RunState state = read_state(find_checkpoint(f / "runs/tune"));
  CHECK(state.tokens == 3 * 2 * 8);
  CHECK(model_context(saved_config(state, "")) == 4096);
  const Finished resumed = tune({"--data.window=16", "--train.steps=4"});
  CHECK(resumed.code == 2);
  CHECK_THAT(resumed.err, ContainsSubstring("data.window = 16 but the run was started with 8"));

  // An evaluation has the run's windows, and what is exported the model's context.
  const Finished eval = lathe_in(f, {"eval", "runs/tune"});
  REQUIRE(eval.code == 0);
  const Json scored = parse_json(eval.out, "", Exit::internal);
  CHECK(scored["val_loss"].get<double>() == *state.val_loss);
  export_hugging_face({.run = f / "runs/tune", .out = f / "hf"});
  CHECK(Json::parse(slurp(f / "hf/config.json"))["n_positions"] == 4096);
  export_gguf({.run = f / "runs/tune", .out = f / "gguf"});
  CHECK(slurp(f / "gguf/model.gguf").find("context_length") != std::string::npos);

  // Of a folder's weights a shorter context may be taken, and no longer one.
  const Finished above =
      tune({"--train.init_from=hf", "--model.block_size=5000", "--train.out_dir=x"});
  CHECK(above.code == 2);
  CHECK_THAT(above.err, ContainsSubstring("command line: model.block_size = 5000 is above"));

  // A step's work is that of its windows.
  const auto plan = [&](const char* window) {
    const Finished planned = tune({window, "--train.batch_size=1", "--json"}, "plan");
    INFO(planned.err);
    REQUIRE(planned.code == 0);
    return parse_json(planned.out, "", Exit::internal)["flops_per_step"].get<double>();
  };
  CHECK(plan("--data.window=64") > 7.5 * plan("--data.window=8"));
  CHECK(tune({"--data.window=8", "--steps=0:1"}, "profile").code == 0);
  CHECK_THAT(
      tune({"--data.window=5000", "--train.out_dir=x"}).err,
      ContainsSubstring("command line: data.window = 5000 is above model.block_size = 4096"));
  CHECK(!fs::exists(f / "x"));
}

TEST_CASE("an import reports what came in, and may ignore keys that change nothing", "[formats]") {
  const TempFolder f;
  export_hugging_face({.run = make_run(f, "run", "gpt", gpt), .out = f / "hf"});
  Json config = Json::parse(slurp(f / "hf/config.json"));
  config["_attn_implementation_autoset"] = true;
  const auto import = [&](const std::string& out, std::vector<std::string> more = {}) {
    write_file(f / "hf/config.json", config.dump());
    more.insert(more.begin(), {"import", "hf", "--out", out});
    return lathe_in(f, more);
  };
  const Finished done = import("plain");
  REQUIRE(done.code == 0);
  CHECK_THAT(done.out + done.err, ContainsSubstring("context of 16 tokens"));
  CHECK_THAT(done.out + done.err, ContainsSubstring("texts end with <|endoftext|>"));
  CHECK_THAT(done.out + done.err, ContainsSubstring("--train.init_from=plain"));

  config["made_by"] = "us";
  config["x"] = 3;
  CHECK_THAT(import("x").err, ContainsSubstring("--ignore-key made_by"));
  CHECK(import("x", {"--ignore-key", "made_by"}).code == 4);
  REQUIRE(import("ignored", {"--ignore-key", "made_by", "--ignore-key", "x"}).code == 0);
  const RunState state = read_state(find_checkpoint(f / "ignored"));
  CHECK(state.ignored_keys == std::vector<std::string>{"made_by", "x"});
  CHECK(state.imported_from == "hf");
  CHECK_THAT(lathe_in(f, {"inspect", "ignored"}).out,
             ContainsSubstring("imported from hf; ignored keys: made_by, x"));
  for (const char* key : {"n_positions", "nothing", "model_type"}) {
    INFO(key);
    const Finished refused =
        import("x", {"--ignore-key", "made_by", "--ignore-key", "x", "--ignore-key", key});
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, ContainsSubstring(std::string("--ignore-key ") + key));
  }
  CHECK(!fs::exists(f / "x"));

  // An imported model is listed as such, and its tokenizer may be used by the run's name.
  const Json listed = Json::parse(lathe_in(f, {"runs", ".", "--json"}).out);
  for (const Json& run : listed) {
    if (run["run"].get<std::string>().find("plain") == std::string::npos) continue;
    CHECK(run["state"] == "imported");
    CHECK(run["steps"] == 0);
  }
  CHECK(listed.size() == 3);
  write_file(f / "a.txt", "the");
  CHECK(lathe_in(f, {"tokenizer", "encode", "a.txt", "--tokenizer", "plain"}).out == "257\n");
  CHECK(lathe_in(f, {"tokenizer", "inspect", "--tokenizer", "plain"}).code == 0);
  make_tiny_run(f.path());
  REQUIRE(lathe_in(f, {"train", "tiny.toml", "--train.out_dir=chars", "--train.steps=1"}).code ==
          0);
  const Finished chars = lathe_in(f, {"tokenizer", "inspect", "--tokenizer", "chars"});
  CHECK(chars.code == 2);
  CHECK_THAT(chars.err, ContainsSubstring("a tokenizer of kind char"));
}

/// For tests/oracles/transformers/oracle.py, which compares with transformers: LATHE_HF names a
/// file with a JSON object on each line,
/// {"run", "ids": [[...]], "greedy": how many tokens to add to the first row, "cache", "out"};
/// logits go to "out" as safetensors.
TEST_CASE("logits and greedy tokens for another program", "[.hf]") {
  const char* list = std::getenv("LATHE_HF");
  if (list == nullptr) {
    WARN(
        "nothing to do: tests/oracles/transformers/oracle.py runs this, where there is "
        "transformers");
    return;
  }
  std::ifstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    const Json job = Json::parse(line);
    const auto rows = job.at("ids").get<std::vector<std::vector<int64_t>>>();
    const LoadedModel m = LoadedModel::open(job.at("run").get<std::string>(), "cpu", 2, "", false);
    at::Tensor ids = at::empty({std::ssize(rows), std::ssize(rows[0])}, at::kLong);
    for (size_t i = 0; i < rows.size(); ++i) ids[static_cast<int64_t>(i)] = torch::tensor(rows[i]);
    at::Tensor logits;
    {
      const NoGrad no_grad;
      const Autocast autocast(m.compute);
      logits = (*m.model)(ids).data().to(at::kFloat).contiguous();
    }
    const GenerateOptions writing{.context = model_context(m.config),
                                  .tokens = job.at("greedy").get<int64_t>(),
                                  .sampling = {.temperature = 0},
                                  .compute = m.compute,
                                  .device = m.device,
                                  .cache = job.at("cache").get<bool>()};
    const at::Tensor greedy = torch::tensor(generate(*m.model, {rows[0]}, writing).at(0));
    write_safetensors(job.at("out").get<std::string>(),
                      {make_entry("logits", logits), make_entry("greedy", greedy)});
  }
}

}  // namespace
