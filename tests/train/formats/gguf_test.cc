// Tests of GGUF files: exports can be imported again, each command reads each type of element, and
// a command that refuses a file throws an error that names the file, and leaves no output.
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "core/dtype.h"
#include "core/io/gguf_file.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/train/formats/gguf_files.h"
#include "tests/train/formats/small_runs.h"
#include "train/commands/inspect.h"
#include "train/formats/gguf.h"
#include "train/formats/gguf_model.h"
#include "train/formats/hugging_face.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// Maps the name of a tensor in the file (without ".weight") to the name of the parameter, and to
/// whether the tensor's rows are rotary channels in pairs.
const std::map<std::string, std::pair<std::string, bool>>& llama_names() {
  static const std::map<std::string, std::pair<std::string, bool>> all{
      {"token_embd", {"tokens", false}},
      {"output_norm", {"norm", false}},
      {"output", {"head", false}},
      {"blk.0.attn_norm", {"blocks.0.norm1", false}},
      {"blk.0.attn_q", {"blocks.0.attn.q", true}},
      {"blk.0.attn_k", {"blocks.0.attn.k", true}},
      {"blk.0.attn_v", {"blocks.0.attn.v", false}},
      {"blk.0.attn_output", {"blocks.0.attn.proj", false}},
      {"blk.0.ffn_norm", {"blocks.0.norm2", false}},
      {"blk.0.ffn_gate", {"blocks.0.mlp.gate", false}},
      {"blk.0.ffn_up", {"blocks.0.mlp.up", false}},
      {"blk.0.ffn_down", {"blocks.0.mlp.down", false}}};
  return all;
}

/// Checks the saved tensors against the values in the file, row by row. If `pairs` is true, the
/// file has rotary channels in pairs: in a head of 64 channels, row i of the saved first half is
/// row 2i of the file, and row i of the saved second half is row 2i + 1 of the file.
void check_imported(const fs::path& run, const LlamaFile& made, const std::string& type,
                    bool pairs = true) {
  const SafetensorsFile saved(find_checkpoint(run) / "model.safetensors");
  CHECK(saved.tensors().size() == made.values.size());
  for (const auto& [name, values] : made.values) {
    INFO(name);
    const auto& [ours, rotary] = llama_names().at(name.substr(0, name.size() - 7));
    const TensorEntry& entry = saved.at(ours + ".weight");
    const bool keeps = entry.shape.size() == 2 && (type == "F16" || type == "BF16");
    CHECK(entry.dtype == (keeps ? type : "F32"));
    const at::Tensor t = entry_tensor(entry, entry.shape, "").to(at::kFloat).contiguous();
    REQUIRE(t.numel() == std::ssize(values));
    const size_t row = static_cast<size_t>(t.size(-1)), rows = values.size() / row;
    for (size_t i = 0; i < rows; ++i) {
      const size_t in_head = i % 64;
      const size_t from = rotary && pairs ? i / 64 * 64 + in_head % 32 * 2 + in_head / 32 : i;
      REQUIRE(std::memcmp(t.data_ptr<float>() + i * row, values.data() + from * row, 4 * row) == 0);
    }
  }
}

TEST_CASE("each type of element is imported, inspected and verified", "[gguf]") {
  const TempFolder f;
  for (const GGUFType& type : gguf_types()) {
    INFO(type.name);
    const auto oracle =
        std::ranges::find(gguf_oracles(), std::string(type.name), &GGUFOracle::name);
    REQUIRE(oracle != gguf_oracles().end());
    LlamaFile made(*oracle);
    const fs::path path = f / "model.gguf";
    write_file(path, made.file.bytes());

    import_gguf({.folder = path, .out = f / "run"});
    check_imported(f / "run", made, type.name);
    const std::string listed = inspect(path);
    CHECK_THAT(listed,
               ContainsSubstring("blk.0.attn_k.weight  " + std::string(type.name) + " [128,256]"));
    CHECK_THAT(listed, ContainsSubstring("general.architecture = llama"));
    CHECK_THAT(listed, ContainsSubstring("tokenizer.ggml.tokens = 259 values: "));
    CHECK_THAT(listed, ContainsSubstring("12 tensors, 526592 elements"));
    CHECK_THAT(verify(path), ContainsSubstring("well formed"));

    // Overwrite the last block, so that its scale or one of its values is not finite.
    std::string& bytes = made.file.tensor("blk.0.ffn_up.weight").bytes;
    std::fill_n(bytes.end() - static_cast<std::ptrdiff_t>(type.bytes), type.bytes, '\xFF');
    write_file(path, made.file.bytes());
    CHECK(inspect(path) == listed);
    const auto [verified, what] = outcome_of([&] { verify(path); });
    CHECK(verified == 4);
    CHECK_THAT(what, ContainsSubstring("blk.0.ffn_up.weight"));
    const auto [imported, why] = outcome_of([&] { import_gguf({.folder = path, .out = f / "x"}); });
    CHECK(imported == 5);
    CHECK_THAT(why, ContainsSubstring("blk.0.ffn_up.weight"));
    CHECK((names(f.path()) == std::set<std::string>{"model.gguf", "run"}));
    remove_tree(f / "run");
  }
}

TEST_CASE("an imported GGUF file has its config, tokenizer and chat template", "[gguf]") {
  const TempFolder f;
  LlamaFile made(float32());
  made.file.version = 2;
  made.file.alignment = 64;
  made.file.value("general.alignment") = gguf_value(64U);
  made.file.padded_end = false;
  write_file(f / "model.gguf", made.file.bytes());
  const Finished done = lathe_in(f, {"import", "model.gguf", "--out", "run"});
  INFO(done.err);
  REQUIRE(done.code == 0);
  CHECK_THAT(done.out + done.err, ContainsSubstring("context of 16 "));
  CHECK_THAT(done.out + done.err, ContainsSubstring("end with <|endoftext|>"));
  check_imported(f / "run", made, "F32");

  const RunState state = read_state(find_checkpoint(f / "run"));
  CHECK(state.imported_from == "model.gguf");
  const RunConfig config = saved_config(state, "");
  const AnyConfig& own = config.model.own;
  CHECK(config.model.kind == "llama");
  CHECK(*own.find<double>("norm_eps") ==
        1e-5);  // the decimal number, not the float32 nearest to it
  CHECK(*own.find<double>("rope_theta") == 10000);
  CHECK(*own.find<int64_t>("head_dim") == 64);
  CHECK(*own.find<int64_t>("n_kv_head") == 2);
  CHECK(!*own.find<bool>("tie_weights"));
  CHECK(*state.tokenizer == small_tokenizer(f));
  CHECK(state.tokenizer->settings().chat_template == chatml_template);
  CHECK(state.tokenizer->marks().end == 258);
  CHECK(state.tokenizer->marks().begin == -1);
  CHECK(lathe_in(f, {"generate", "run", "--prompt", "the", "--tokens", "2"}).code == 0);

  // The head is tied to the embeddings if it equals them, as in llama.cpp's files of GPT-2, or if
  // it is absent. Qwen's rows are in Lathe's order.
  LlamaFile tied(float32(), "qwen2");
  for (const char* part : {"q", "k", "v"})
    tied.file.tensors.push_back({.name = std::string("blk.0.attn_") + part + ".bias",
                                 .sizes = {part[0] == 'q' ? 256U : 128U},
                                 .bytes = std::string(part[0] == 'q' ? 1024 : 512, '\0')});
  tied.file.tensor("output.weight").bytes = tied.file.tensor("token_embd.weight").bytes;
  write_file(f / "tied.gguf", tied.file.bytes());
  import_gguf({.folder = f / "tied.gguf", .out = f / "tied"});
  tied.file.remove_tensor("output.weight");
  write_file(f / "tied.gguf", tied.file.bytes());
  import_gguf({.folder = f / "tied.gguf", .out = f / "absent"});
  CHECK(model_bytes(f / "tied") == model_bytes(f / "absent"));
  const SafetensorsFile saved(find_checkpoint(f / "tied") / "model.safetensors");
  CHECK(saved.find("head.weight") == nullptr);
  const TensorEntry& q = saved.at("blocks.0.attn.q.weight");
  CHECK(std::memcmp(q.bytes.data(), tied.values.at("blk.0.attn_q.weight").data(), q.bytes.size()) ==
        0);
}

/// Exports `run`, imports the file as a run of the same name, and exports the imported run. The
/// second file must have the same bytes. The imported run must have the weights and keys of a run
/// that is imported from a Hugging Face export.
void check_round_trip(const TempFolder& f, const fs::path& run, const std::string& dtype = "") {
  INFO(run.filename().string() << " " << dtype);
  const std::string name = run.filename().string();
  export_hugging_face({.run = run, .out = f / "hf", .dtype = dtype});
  import_hugging_face({.folder = f / "hf", .out = f / "from-hf"});
  export_gguf({.run = run, .out = f / "gguf", .dtype = dtype});
  import_gguf({.folder = f / "gguf/model.gguf", .out = f / "again" / name});
  export_gguf({.run = f / "again" / name, .out = f / "twice"});
  CHECK(slurp(f / "gguf/model.gguf") == slurp(f / "twice/model.gguf"));
  CHECK(model_bytes(f / "again" / name) == model_bytes(f / "from-hf"));
  CHECK_THAT(verify(f / "gguf/model.gguf"), ContainsSubstring("well formed"));

  const RunState hf = read_state(find_checkpoint(f / "from-hf")),
                 gguf = read_state(find_checkpoint(f / "again" / name));
  CHECK(hf.tokenizer->encode("the thing") == gguf.tokenizer->encode("the thing"));
  CHECK(hf.tokenizer->marks().end == gguf.tokenizer->marks().end);
  CHECK(hf.tokenizer->prompt_begin() == gguf.tokenizer->prompt_begin());
  const RunConfig was = saved_config(hf, ""), is = saved_config(gguf, "");
  for (const Field& key : was.schema().fields()) {
    INFO(key.key);
    // GGUF has no dropout.
    if (key.key.starts_with("model.") && key.key != "model.dropout")
      CHECK(toml_text(was.schema().get(&was, key)) == toml_text(is.schema().get(&is, key)));
  }
  for (const char* made : {"hf", "from-hf", "gguf", "again", "twice"}) remove_tree(f / made);
}

TEST_CASE("a run exported as GGUF is imported like its Hugging Face export", "[gguf]") {
  const TempFolder f;
  check_round_trip(f, make_run(f, "gpt", "gpt", gpt));
  check_round_trip(f, f / "gpt", "fp16");
  check_round_trip(f, f / "gpt", "bf16");
  check_round_trip(f, make_run(f, "untied", "gpt", with(gpt, "tie_weights", false)));
  check_round_trip(f, make_run(f, "bare", "gpt", with(gpt, "bias", false)));

  const auto llama = [&](const std::string& name, Values more) {
    more.insert(more.begin(), small_llama.begin(), small_llama.end());
    return make_run(f, name, "llama", more);
  };
  check_round_trip(f, llama("llama", {}));
  check_round_trip(f, f / "llama", "bf16");
  check_round_trip(f, llama("tied", {{"tie_weights", true}}));
  check_round_trip(f, llama("heads", {{"n_kv_head", int64_t{4}}, {"norm_eps", 1e-6}}));
  check_round_trip(f, llama("qwen2", {{"qkv_bias", true}}));
  check_round_trip(f, llama("qwen3", {{"qk_norm", true}, {"rope_theta", 1e6}}));
  const auto scaled = [](const char* type, Values more) {
    more.insert(more.end(), {{"rope_scaling", std::string(type)}, {"rope_factor", 8.0}});
    return more;
  };
  check_round_trip(f, llama("linear", scaled("linear", {})));
  check_round_trip(f, llama("yarn", scaled("yarn", {{"rope_original_context", int64_t{8}}})));
  check_round_trip(f, llama("yarn-keys", scaled("yarn", {{"rope_original_context", int64_t{8}},
                                                         {"rope_beta_fast", 8.0},
                                                         {"rope_beta_slow", 0.5},
                                                         {"rope_attention_factor", 1.3}})));
}

TEST_CASE("a GGUF file in place of a run or a tokenizer is refused with a remedy", "[gguf]") {
  const TempFolder f;
  make_tiny_run(f.path());
  write_file(f / "model.gguf", LlamaFile(gguf_oracles()[0]).file.bytes());
  write_file(f / "tune.toml",
             "[data]\ndir = \"data\"\n[train]\nsteps = 1\nbatch_size = 2\nout_dir = \"out\"\n");
  struct Row {
    std::vector<std::string> words;
    Exit code;
  };
  const std::vector<Row> rows{
      {{"train", "tune.toml", "--train.init_from=model.gguf"}, Exit::checkpoint},
      {{"train", "tune.toml", "--train.init_from=model.gguf", "--adapters.rank=2"},
       Exit::checkpoint},
      {{"train", "tune.toml", "--train.task=distill", "--distill.teacher=model.gguf"},
       Exit::checkpoint},
      {{"train", "model.gguf"}, Exit::usage},
      {{"prepare", "my.txt", "--out", "out", "--tokenizer", "model.gguf"}, Exit::data},
      {{"import", "model.gguf", "--out", "out", "--tokenizer", "model.gguf"}, Exit::data}};
  write_file(f / "my.txt", sample_text(2000));
  for (const Row& row : rows) {
    const Finished done = lathe_in(f, row.words);
    INFO(row.words[0] << ": " << done.err);
    CHECK(done.code == static_cast<int>(row.code));
    CHECK_THAT(done.err, ContainsSubstring("model.gguf"));
    CHECK_THAT(done.err, ContainsSubstring("lathe import"));
    CHECK(!fs::exists(f / "out"));
  }

  // The same keys accept the run that import creates from the file.
  REQUIRE(lathe_in(f, {"import", "model.gguf", "--out", "run"}).code == 0);
  const Finished prepared =
      lathe_in(f, {"prepare", "my.txt", "--out", "own", "--tokenizer", "run"});
  INFO(prepared.err);
  CHECK(prepared.code == 0);
  const Finished trained =
      lathe_in(f, {"train", "tune.toml", "--train.init_from=run", "--data.dir=own"});
  INFO(trained.err);
  CHECK(trained.code == 0);
}

TEST_CASE("llama3's scaling is recovered from the divisors in rope_freqs.weight", "[gguf]") {
  const TempFolder f;
  const auto trip = [&](const std::string& name, int64_t width, int64_t context, double theta,
                        double factor, double high) {
    Values values = small_llama;
    values.insert(values.end(), {{"head_dim", width},
                                 {"rope_scaling", std::string("llama3")},
                                 {"rope_theta", theta},
                                 {"rope_factor", factor},
                                 {"rope_low_freq_factor", 1.0},
                                 {"rope_high_freq_factor", high},
                                 {"rope_original_context", context}});
    check_round_trip(f, make_run(f, name, "llama", values));
  };
  trip("llama-3.1", 128, 8192, 500000, 8, 4);
  trip("llama-3.2", 64, 8192, 500000, 32, 4);
  trip("short", 8, 16, 10000, 8, 4);
  trip("other", 64, 4096, 10000, 1.3, 9);

  // Divisors in float32, as llama.cpp's converter computes them, are close enough.
  LlamaFile made(float32());
  const auto divisors = [](float change) {
    std::string bytes;
    for (int i = 0; i < 32; ++i) {
      const float frequency = 1 / std::pow(500000.0F, static_cast<float>(2 * i) / 64.0F);
      const float wave = static_cast<float>(2 * M_PI) / frequency;
      const float smooth = (8192 / wave - 1) / (4 - 1);
      bytes += raw(wave < 8192 / 4.0F   ? 1.0F
                   : wave > 8192 / 1.0F ? 8.0F
                                        : (i == 17 ? change : 1) / ((1 - smooth) / 8 + smooth));
    }
    return bytes;
  };
  made.file.value("llama.rope.freq_base") = gguf_value(500000.0F);
  made.file.tensors.push_back({.name = "rope_freqs.weight", .sizes = {32}, .bytes = divisors(1)});
  write_file(f / "model.gguf", made.file.bytes());
  import_gguf({.folder = f / "model.gguf", .out = f / "run"});
  const RunConfig config = saved_config(read_state(find_checkpoint(f / "run")), "");
  CHECK(*config.model.own.find<std::string>("rope_scaling") == "llama3");
  CHECK(*config.model.own.find<int64_t>("rope_original_context") == 8192);
  CHECK(*config.model.own.find<double>("rope_high_freq_factor") == 4);

  // If all divisors are equal, the scaling is linear, or "none" if the divisor is 1.
  for (const float divisor : {1.0F, 4.0F}) {
    std::string bytes;
    for (int i = 0; i < 32; ++i) bytes += raw(divisor);
    made.file.tensor("rope_freqs.weight").bytes = bytes;
    write_file(f / "model.gguf", made.file.bytes());
    const fs::path out = f / str("equal-", divisor);
    import_gguf({.folder = f / "model.gguf", .out = out});
    const RunConfig equal = saved_config(read_state(find_checkpoint(out)), "");
    CHECK(*equal.model.own.find<std::string>("rope_scaling") == (divisor == 1 ? "none" : "linear"));
    CHECK(*equal.model.own.find<double>("rope_factor") == divisor);
  }

  // Divisors of another formula, or of another model, are refused.
  const auto refused = [&](const std::string& bytes) {
    made.file.tensor("rope_freqs.weight").bytes = bytes;
    made.file.tensor("rope_freqs.weight").sizes = {bytes.size() / 4};
    write_file(f / "model.gguf", made.file.bytes());
    const auto [code, what] =
        outcome_of([&] { import_gguf({.folder = f / "model.gguf", .out = f / "x"}); });
    CHECK(code == 4);
    CHECK_THAT(what, ContainsSubstring("rope_freqs.weight"));
    CHECK(!fs::exists(f / "x"));
  };
  refused(divisors(1.01F));
  refused(divisors(1).substr(4));
  refused(std::string(128, '\xFF'));
  refused(std::string(128, '\0'));
}

/// Checks that the tensor `name` of the file has the blocks to which `type` quantizes the float32
/// matrix `t`.
void check_quantized(const GGUFFile& file, const std::string& name, const at::Tensor& t,
                     const GGUFType& type) {
  INFO(name);
  const TensorEntry* entry = file.find(name);
  REQUIRE(entry != nullptr);
  CHECK(entry->dtype == type.name);
  std::vector<std::byte> wanted(static_cast<size_t>(t.numel() / type.elements) * type.bytes);
  for (int64_t i = 0; i < t.numel() / type.elements; ++i)
    type.write(t.data_ptr<float>() + i * type.elements,
               wanted.data() + static_cast<size_t>(i) * type.bytes);
  CHECK(std::ranges::equal(entry->bytes, wanted));
}

TEST_CASE("matrices are quantized where rows are complete blocks, and vectors stay float32",
          "[gguf]") {
  const TempFolder f;
  const Values sizes{{"n_layer", int64_t{1}},      {"n_head", int64_t{4}},
                     {"head_dim", int64_t{6}},     {"n_embd", int64_t{64}},
                     {"n_inner", int64_t{40}},     {"block_size", int64_t{16}},
                     {"vocab_size", int64_t{259}}, {"tie_weights", false}};
  const fs::path run = make_run(f, "run", "llama", sizes);
  const SafetensorsFile ours(find_checkpoint(run) / "model.safetensors");
  for (const std::string& dtype : gguf_dtypes()) {
    INFO(dtype);
    const Finished done =
        lathe_in(f, {"export", "run", "--format", "gguf", "--dtype", dtype, "--out", dtype});
    INFO(done.err);
    REQUIRE(done.code == 0);
    const GGUFFile file(f / dtype / "model.gguf");
    const GGUFType& type = *find_gguf_type(dtype == "q8_0" ? "Q8_0" : "Q4_0");
    CHECK(*file.find_value("general.file_type") == (dtype == "q8_0" ? 7 : 2));
    const auto ours_of = [&](const char* name) {
      const TensorEntry& entry = ours.at(name);
      return entry_tensor(entry, entry.shape, "").contiguous();
    };
    check_quantized(file, "token_embd.weight", ours_of("tokens.weight"), type);
    check_quantized(file, "output.weight", ours_of("head.weight"), type);
    check_quantized(file, "blk.0.ffn_up.weight", ours_of("blocks.0.mlp.up.weight"), type);
    CHECK(file.find("blk.0.attn_norm.weight")->dtype == "F32");
    // These matrices have rows of 24 and 40 elements, which are not complete blocks.
    CHECK_THAT(done.out + done.err,
               ContainsSubstring("2 matrices") && ContainsSubstring("float16"));
    for (const char* name : {"blk.0.attn_output.weight", "blk.0.ffn_down.weight"})
      CHECK(file.find(name)->dtype == "F16");

    // Quantizing again changes nothing.
    import_gguf({.folder = f / dtype / "model.gguf", .out = f / (dtype + "-again") / "run"});
    export_gguf(
        {.run = f / (dtype + "-again") / "run", .out = f / (dtype + "-twice"), .dtype = dtype});
    CHECK(slurp(f / (dtype + "-twice") / "model.gguf") == slurp(f / dtype / "model.gguf"));
  }
  const Finished hf = lathe_in(f, {"export", "run", "--dtype", "q8_0", "--out", "x"});
  CHECK(hf.code == 2);
  CHECK_THAT(hf.err, ContainsSubstring("--dtype"));

  // The table of positions stays float32.
  const Values positions{{"n_layer", int64_t{1}},
                         {"n_head", int64_t{2}},
                         {"n_embd", int64_t{32}},
                         {"block_size", int64_t{16}},
                         {"vocab_size", int64_t{259}}};
  export_gguf({.run = make_run(f, "gpt", "gpt", positions), .out = f / "gpt-q8", .dtype = "q8_0"});
  const GGUFFile file(f / "gpt-q8/model.gguf");
  CHECK(file.find("position_embd.weight")->dtype == "F32");
  CHECK(file.find("blk.0.attn_qkv.weight")->dtype == "Q8_0");
  CHECK(!fs::exists(f / "x"));
}

}  // namespace
