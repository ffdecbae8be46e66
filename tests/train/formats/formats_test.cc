// Tests exports to and imports from the formats of other programs. An export can be imported again.
// An inconsistent folder is refused with an error that names the fault, and the import leaves no
// files.
#include <cstdlib>
#include <fstream>

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
  CHECK(names(f.path()).size() == 4);  // only tokenizer.json, run, hf and again
  for (const char* name : {"run", "hf", "again"}) remove_tree(f / name);
}

TEST_CASE("a run exported as a Hugging Face folder is imported with the same bytes", "[formats]") {
  const TempFolder f;
  round_trip(f, "gpt", gpt);
  round_trip(f, "gpt", with(with(gpt, "tie_weights", false), "dropout", 0.25));
}

TEST_CASE("a GPT without biases is exported with zeros for them", "[formats]") {
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
             ContainsSubstring((f / "short").string()) && ContainsSubstring("already"));
}

TEST_CASE("an export or import to a folder that another command writes ends with exit code 8",
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
      CHECK_THAT(done.err, ContainsSubstring("out is in use"));
      CHECK(fs::exists(other.path()));
    }
    CHECK(names(f.path()) == before);
    CHECK(lathe_in(f, command).code == 0);
    remove_tree(f / "out");
    CHECK(names(f.path()) == before);
  }
}

TEST_CASE(
    "an interrupted export or import leaves no files, and a later one removes what a killed one "
    "left",
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
      const Finished stopped = run({.binary = "lathe_faults",
                                    .args = command,
                                    .folder = f.path(),
                                    .environment = {{"LATHE_TEST_STOP", point}}});
      CHECK(stopped.code == 75);
      CHECK_THAT(stopped.err, ContainsSubstring("a/out"));
      CHECK(names(f.path()) == before);

      REQUIRE(run({.binary = "lathe_faults",
                   .args = command,
                   .folder = f.path(),
                   .environment = {{"LATHE_TEST_KILL", point}}})
                  .code == 128 + 9);
      CHECK((names(f / "a") == std::set<std::string>{".unfinished-out"}));
      CHECK(lathe_in(f, command).code == 0);
      CHECK((names(f / "a") == std::set<std::string>{"out"}));
      remove_tree(f / "a");
    }

    // If a command is killed after the rename, the next command that writes the same folder removes
    // what the killed command left beside that folder.
    REQUIRE(run({.binary = "lathe_faults",
                 .args = command,
                 .folder = f.path(),
                 .environment = {{"LATHE_TEST_KILL", "new folder: renamed 1"}}})
                .code == 128 + 9);
    const auto written = names(f / "a/out");
    remove_tree(f / "a/out");
    CHECK(lathe_in(f, command).code == 0);
    CHECK((names(f / "a") == std::set<std::string>{"out"}));
    CHECK(names(f / "a/out") == written);
    remove_tree(f / "a");
  }
}

TEST_CASE("a symbolic link is refused as a new folder before any work", "[formats]") {
  const TempFolder f;
  fs::create_directory(f / "there");
  for (const char* target : {"there", "missing"}) {
    fs::create_symlink(target, f / "link");
    CHECK_THAT(error_of([&] { const NewFolder out(f / "link"); }),
               ContainsSubstring((f / "link").string()) && ContainsSubstring("symbolic"));
    CHECK(fs::is_empty(f / "there"));
    fs::remove(f / "link");
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

TEST_CASE("a new folder does not replace another program's files under its temporary name",
          "[formats]") {
  const TempFolder f;
  const fs::path theirs = f / ".unfinished-mine";
  const auto refused = [&] {
    CHECK_THAT(error_of([&] { const NewFolder folder(f / "mine"); }),
               ContainsSubstring(theirs.string()) && ContainsSubstring("--out"));
    CHECK((names(f.path()) == std::set<std::string>{".unfinished-mine"}));
  };
  write_file(theirs, "a file");
  refused();
  CHECK(slurp(theirs) == "a file");
  fs::remove(theirs);

  // These two folders are refused as well. The first has an entry with a name that commands use,
  // but no lock file. The second has a lock file and another program's file.
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
             ContainsSubstring(theirs.string()) && ContainsSubstring("--out"));
}

/// Returns the error of an import of a copy of `hf` that `edit` has changed, or "" if there is
/// none. A refused import must leave nothing.
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

/// Returns an edit that rewrites model.safetensors with changed tensors.
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

/// Returns an edit that splits model.safetensors into two files with an index. `edit` changes the
/// index.
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

TEST_CASE(
    "a Hugging Face folder that is inconsistent or needs an unsupported computation is refused "
    "with an error that names the fault",
    "[formats]") {
  const TempFolder f;
  export_hugging_face({.run = make_run(f, "run", "gpt", gpt), .out = f / "hf"});
  const auto says = [&](const std::function<void(const fs::path&)>& edit, const std::string& what,
                        const std::string& also = "") {
    INFO(what);
    CHECK_THAT(refusal(f, f / "hf", edit), ContainsSubstring(what) && ContainsSubstring(also));
  };

  // The unchanged folder is accepted, and so are a sharded folder and changes that don't matter.
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

  // These values ask for a computation that Lathe does not support.
  says(config_with("n_inner", 31), "n_inner = 31");
  says(config_with("activation_function", "relu"), "activation_function = \"relu\"");
  says(config_with("layer_norm_epsilon", 1e-6), "layer_norm_epsilon");
  says(config_with("scale_attn_weights", false), "scale_attn_weights = false");
  says(config_with("scale_attn_by_inverse_layer_idx", true),
       "scale_attn_by_inverse_layer_idx = true");
  says(config_with("add_cross_attention", true), "add_cross_attention = true");
  says(config_with("rotary_pct", 0.25), "rotary_pct = 0.25");
  says(config_with("model_type", "bert"), "model_type = \"bert\"");

  // These sizes do not fit each other or the tensors.
  says(config_with("n_head", 3), "n_head");
  says(config_with("n_head", "2"), "n_head");
  says(config_with("n_layer", 0), "n_layer");
  says(config_with("n_layer", 3), "transformer.h.2.ln_1.weight");
  says(config_with("n_layer", 1), "transformer.h.1.");
  says(config_with("n_embd", 4), "transformer.wte.weight");
  says(config_with("vocab_size", 260), "transformer.wte.weight");
  says(config_with("n_positions", 17), "transformer.wpe.weight");
  says(config_with("tie_word_embeddings", false), "lm_head.weight");

  // These files are missing or damaged.
  says([](const fs::path& p) { fs::remove(p / "config.json"); }, "no config.json");
  says([](const fs::path& p) { write_file(p / "config.json", "[]"); }, "model_type");
  says([](const fs::path& p) { fs::remove(p / "model.safetensors"); },
       "model.safetensors.index.json");
  says([](const fs::path& p) { fs::resize_file(p / "model.safetensors", 5000); },
       "model.safetensors", "h.0.mlp.c_proj.weight");
  says(
      [](const fs::path& p) {
        fs::remove(p / "tokenizer.json");
        fs::remove(p / "vocab.json");
      },
      "--tokenizer none");
  says(
      [](const fs::path& p) {
        Json j = Json::parse(slurp(p / "tokenizer.json"));
        j["added_tokens"][0]["id"] = 259;
        write_file(p / "tokenizer.json", j.dump());
      },
      "vocabulary of 259");

  // These tensors are missing, unknown or wrong.
  says(tensors_with([](auto& t) { t.erase("transformer.ln_f.bias"); }), "\"transformer.ln_f.bias\"",
       "lacks");
  says(tensors_with([](auto& t) { t["score.weight"] = torch::ones({2, 8}); }), "score.weight");
  says(tensors_with([](auto& t) {
         t["transformer.wte.weight"] = t["transformer.wte.weight"].to(at::kDouble);
       }),
       "transformer.wte.weight", "is F64");
  says(tensors_with([](auto& t) {
         at::Tensor& w = t["transformer.h.0.mlp.c_fc.weight"];
         w = w.t().contiguous();
       }),
       "transformer.h.0.mlp.c_fc.weight", "[8,32]");
  says(tensors_with([](auto& t) { t["transformer.wpe.weight"][1][1] = std::nan(""); }),
       "transformer.wpe.weight", "not finite");
  says(tensors_with([](auto& t) { t["lm_head.weight"] = t["transformer.wte.weight"] + 1; }),
       "tie_word_embeddings");
  says(tensors_with([](auto& t) { t["wpe.weight"] = t["transformer.wpe.weight"] + 1; }),
       "\"wpe.weight\"", "belong");

  // These indices do not agree with the files.
  says(sharded([](Json& map) { map["transformer.wte.weight"] = "c.safetensors"; }), "c.safetensors",
       "index.json");
  says(sharded([](Json& map) { map["transformer.wte.weight"] = "a.safetensors"; }),
       "\"transformer.wte.weight\"", "in a.safetensors");
  says(sharded([](Json& map) { map["transformer.wte.weight"] = "../a.safetensors"; }),
       "\"transformer.wte.weight\"", ".safetensors file");
  says(sharded([](Json& map) { map.erase("transformer.wte.weight"); }),
       "\"transformer.wte.weight\"", "/b.safetensors");
  says(sharded([](Json& map) { map["made_up"] = "a.safetensors"; }), "\"made_up\"",
       "in a.safetensors");
}

TEST_CASE(
    "export refuses a model kind without a family, and averaged weights that the run does not have",
    "[formats]") {
  const TempFolder f;
  const Values rnn{{"vocab_size", int64_t{259}}, {"block_size", int64_t{8}}};
  const fs::path run = make_run(f, "rnn", "rnn", rnn);
  CHECK_THAT(error_of([&] { export_hugging_face({.run = run, .out = f / "hf"}); }),
             ContainsSubstring("kind rnn") && ContainsSubstring("--format onnx"));
  CHECK(!fs::exists(f / "hf"));
  CHECK_THAT(error_of([&] { export_hugging_face({.run = run, .out = f / "hf", .average = true}); }),
             ContainsSubstring("optim.ema_decay"));
}

/// Computes results for tests/oracles/transformers/oracle.py and tests/oracles/onnx/oracle.py.
/// LATHE_HF names a file with a JSON object on each line, {"run", "ids": [[...]], "greedy": how
/// many tokens to add to the first row, "cache", "out"}. Writes the tensors "logits" and "greedy"
/// to "out" as safetensors.
TEST_CASE("a given tokenizer keeps its own special tokens where it lacks the model's",
          "[formats]") {
  const TempFolder f;
  const auto exported = [&](const std::string& name, const std::vector<std::string>& special) {
    const fs::path run = make_run(f, name, "gpt", with(gpt, "vocab_size", int64_t{258}),
                                  byte_tokenizer_with(special));
    export_hugging_face({.run = run, .out = f / (name + "-hf")});
    return f / (name + "-hf");
  };
  const fs::path chat = exported("chat", {"<|im_start|>", "<|im_end|>"}),
                 text = exported("text", {"<|endoftext|>"});
  Json settings = Json::parse(slurp(chat / "tokenizer_config.json"));
  settings["eos_token"] = "<|im_end|>";
  write_file(chat / "tokenizer_config.json", settings.dump());
  const auto imported_end = [&](const fs::path& tokenizer) {
    fs::remove_all(f / "again");
    import_hugging_face({.folder = chat, .out = f / "again", .tokenizer = tokenizer.string()});
    return read_state(find_checkpoint(f / "again")).tokenizer->marks().end;
  };
  CHECK(imported_end(chat) == 257);
  CHECK(imported_end(text) == 256);
}

TEST_CASE("logits and greedy tokens for another program", "[.hf]") {
  const char* list = std::getenv("LATHE_HF");
  if (list == nullptr) {
    WARN(
        "skipped: tests/oracles/transformers/oracle.py and tests/oracles/onnx/oracle.py run "
        "this");
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
