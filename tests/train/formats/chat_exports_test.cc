// Tests that exports keep a chat model's template, special tokens and generation settings.
#include <string>
#include <vector>

#include "core/io/json.h"
#include "data/tokenizers/chat_template.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"
#include "tests/train/formats/small_runs.h"
#include "train/formats/gguf.h"
#include "train/formats/gguf_model.h"
#include "train/formats/hugging_face.h"

namespace {

using namespace lathe;
using namespace lathe::test;

/// The template of chat_folder(), with a default system message.
const char* const tuned_template =
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe a test.<|im_end|>\\n' }}"
    "{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% endif %}";
const std::string tuned_generation = "{ \"eos_token_id\": [258, 256],\n \"top_p\": 0.8}\n";

/// Creates a Hugging Face folder of a chat model whose texts end with <|im_end|>.
fs::path chat_folder(const TempFolder& f) {
  const Tokenizer tokenizer = byte_tokenizer_with({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  export_hugging_face({.run = make_run(f, "first", "gpt", gpt, tokenizer), .out = f / "hf"});
  write_file(f / "hf/tokenizer_config.json",
             Json{{"bos_token", nullptr},
                  {"eos_token", {{"content", "<|im_end|>"}, {"special", true}}},
                  {"pad_token", "<|endoftext|>"},
                  {"chat_template", tuned_template}}
                 .dump());
  write_file(f / "hf/generation_config.json", tuned_generation);
  return f / "hf";
}

/// Checks that a run's exports have all parts that chat_folder() has.
void check_chat_export(const TempFolder& f, const std::string& run) {
  INFO(run);
  const fs::path hf = f / ("hf-" + run), gguf = f / ("gguf-" + run);
  export_hugging_face({.run = f / run, .out = hf});
  const Json settings = Json::parse(slurp(hf / "tokenizer_config.json")),
             config = Json::parse(slurp(hf / "config.json"));
  CHECK(settings.value("chat_template", "") == tuned_template);
  CHECK(settings.value("eos_token", "") == "<|im_end|>");
  CHECK(settings.value("pad_token", "") == "<|endoftext|>");
  CHECK(!settings.contains("bos_token"));
  CHECK(config.at("eos_token_id") == 258);
  CHECK(config.at("pad_token_id") == 256);
  CHECK(config.at("bos_token_id").is_null());
  CHECK(slurp(hf / "generation_config.json") == tuned_generation);
  export_gguf({.run = f / run, .out = gguf});
  CHECK(slurp(gguf / "model.gguf").find(tuned_template) != std::string::npos);
}

TEST_CASE(
    "a chat model keeps its template and tokens through training, adapters, a merge and a branch",
    "[chat_exports]") {
  const TempFolder f;
  import_hugging_face({.folder = chat_folder(f), .out = f / "imported"});
  check_chat_export(f, "imported");
  const Tokenizer tokenizer = *read_state(find_checkpoint(f / "imported")).tokenizer;
  CHECK(
      ChatTemplate(tokenizer, "", "").encode_prompt({{"user", "Hi"}}) ==
      tokenizer.encode("<|im_start|>system\nBe a test.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                       "<|im_start|>assistant\n"));
  CHECK(tokenizer.ends_text(258));

  // The data are prepared with only the tokenizer. Training on them removes no template and no
  // token.
  write_file(f / "text.txt", sample_text(3000));
  REQUIRE(lathe_in(f, {"prepare", "text.txt", "--out", "data", "--tokenizer", "hf/tokenizer.json"})
              .code == 0);
  write_file(f / "tune.toml",
             "[data]\ndir = \"data\"\n[train]\nsteps = 2\nbatch_size = 2\neval_interval = 0\n"
             "threads = 1\n");
  const auto tune = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "tune.toml", "--train.out_dir=" + out});
    const Finished done = lathe_in(f, more);
    INFO(done.err);
    REQUIRE(done.code == 0);
  };
  tune("tuned", {"--train.init_from=imported"});
  tune("tuned", {"--train.init_from=imported", "--train.steps=3"});
  tune("folder", {"--train.init_from=hf"});
  tune("adapters", {"--adapters.base=imported", "--adapters.rank=2"});
  REQUIRE(lathe_in(f, {"merge", "adapters", "--out", "merged"}).code == 0);
  tune("branch", {"--train.init_from=imported", "--train.steps=4",
                  "--checkpoint.resume=" + find_checkpoint(f / "tuned").string()});
  for (const char* run : {"tuned", "folder", "merged", "branch"}) check_chat_export(f, run);

  // A run that starts from random weights on these data has no template.
  tune("plain", {"--model.n_embd=8", "--model.n_layer=1", "--model.block_size=16"});
  export_hugging_face({.run = f / "plain", .out = f / "hf-plain"});
  const Json plain = Json::parse(slurp(f / "hf-plain/tokenizer_config.json"));
  CHECK(!plain.contains("chat_template"));
  CHECK(plain.value("eos_token", "") == "<|endoftext|>");
}

TEST_CASE("chat templates are exported unchanged, or as --chat-template sets them",
          "[chat_exports]") {
  const TempFolder f;
  const fs::path folder = chat_folder(f);
  const auto again = [&](const std::string& name, const std::string& chosen = "") {
    import_hugging_face({.folder = folder, .out = f / name, .chat_template = chosen});
    export_hugging_face({.run = f / name, .out = f / ("hf-" + name)});
    return f / ("hf-" + name);
  };
  Json config = Json::parse(slurp(folder / "tokenizer_config.json"));
  config["chat_template"] = {{{"name", "default"}, {"template", "[INST]"}},
                             {{"name", "tools"}, {"template", "tools"}}};
  write_file(folder / "tokenizer_config.json", config.dump());
  CHECK(Json::parse(slurp(again("list") / "tokenizer_config.json"))["chat_template"] ==
        config["chat_template"]);
  const Finished chat = lathe_in(f, {"chat", "list"});
  CHECK(chat.code == 2);
  CHECK_THAT(chat.err, ContainsSubstring("list: ") && ContainsSubstring("ChatML"));

  write_file(folder / "chat_template.jinja", "a\n\n");
  const fs::path file = again("file");
  CHECK(slurp(file / "chat_template.jinja") == "a\n\n");
  CHECK(!Json::parse(slurp(file / "tokenizer_config.json")).contains("chat_template"));
  const Json chosen = Json::parse(slurp(again("chosen", "chatml") / "tokenizer_config.json"));
  CHECK(chosen.value("chat_template", "") == chatml_template);
  CHECK(!fs::exists(f / "hf-chosen/chat_template.jinja"));

  // If none of these files exists, the default tokens are written.
  for (const char* name :
       {"tokenizer_config.json", "chat_template.jinja", "generation_config.json"})
    fs::remove(folder / name);
  const fs::path bare = again("bare");
  CHECK(Json::parse(slurp(bare / "tokenizer_config.json"))["eos_token"] == "<|endoftext|>");
  CHECK(!fs::exists(bare / "generation_config.json"));
  // If tokenizer_config.json does not name the tokens, special_tokens_map.json can name them.
  write_file(folder / "tokenizer_config.json", "{\"model_max_length\": 1024}");
  CHECK(Json::parse(slurp(again("unnamed") / "config.json"))["eos_token_id"] == 256);
  write_file(folder / "special_tokens_map.json", "{\"eos_token\": \"<|im_end|>\"}");
  CHECK(Json::parse(slurp(again("mapped") / "config.json"))["eos_token_id"] == 258);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
    fs::remove(folder / name);

  REQUIRE(lathe_in(f, {"export", "bare", "--out", "set", "--chat-template", "chatml"}).code == 0);
  CHECK(Json::parse(slurp(f / "set/tokenizer_config.json"))["eos_token"] == "<|im_end|>");
  const Finished lacks = lathe_in(f, {"export", "bare", "--out", "x", "--chat-template", "llama3"});
  CHECK(lacks.code == 2);
  CHECK_THAT(lacks.err, ContainsSubstring("<|eot_id|>"));
  CHECK(!fs::exists(f / "x"));

  // If the contents of a file are invalid, the error names the file.
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"tokenizer_config.json", "[]"},
           {"tokenizer_config.json", "{\"eos_token\": 3}"},
           {"tokenizer_config.json", "{\"chat_template\": {}}"},
           {"generation_config.json", "3"},
           {"chat_template.jinja", "\xff"}}) {
    INFO(name << text);
    write_file(folder / name, text);
    CHECK_THAT(error_of([&] { import_hugging_face({.folder = folder, .out = f / "x"}); }),
               ContainsSubstring(name));
    CHECK(!fs::exists(f / "x"));
    fs::remove(folder / name);
  }
}

TEST_CASE("each end token of generation_config.json or config.json ends a text", "[chat_exports]") {
  const TempFolder f;
  const fs::path folder = chat_folder(f);
  const auto imported = [&](const std::string& name) {
    import_hugging_face({.folder = folder, .out = f / name});
    return *read_state(find_checkpoint(f / name)).tokenizer;
  };
  const Tokenizer two = imported("two");  // the file has [258, 256]
  CHECK(two.ends_text(258));
  CHECK(two.ends_text(256));
  CHECK(!two.ends_text(257));

  write_file(folder / "generation_config.json", "{\"eos_token_id\": [258, 257, 65]}");
  const Tokenizer three = imported("three");
  for (const int64_t id : {258, 257, 65}) CHECK(three.ends_text(id));
  CHECK(!three.ends_text(66));

  // A list in config.json is exported again. A number in generation_config.json is also read.
  write_file(folder / "generation_config.json", "{\"eos_token_id\": 66}");
  Json config = Json::parse(slurp(folder / "config.json"));
  config["eos_token_id"] = {258, 67};
  write_file(folder / "config.json", config.dump());
  const Tokenizer listed = imported("listed");
  for (const int64_t id : {258, 66, 67}) CHECK(listed.ends_text(id));
  CHECK(!listed.ends_text(65));
  export_hugging_face({.run = f / "listed", .out = f / "hf-listed"});
  CHECK(Json::parse(slurp(f / "hf-listed/config.json"))["eos_token_id"] == config["eos_token_id"]);

  // --chat-template adds the end token of the format that it selects.
  config["eos_token_id"] = {67, 256};
  write_file(folder / "config.json", config.dump());
  import_hugging_face({.folder = folder, .out = f / "set", .chat_template = "chatml"});
  export_hugging_face({.run = f / "set", .out = f / "hf-set"});
  CHECK(Json::parse(slurp(f / "hf-set/config.json"))["eos_token_id"] == Json({258, 67, 256}));
  CHECK(Json::parse(slurp(f / "hf-set/generation_config.json"))["eos_token_id"] == Json({258, 66}));

  for (const char* wrong : {"{\"eos_token_id\": \"a\"}", "{\"eos_token_id\": [1, null]}"}) {
    write_file(folder / "generation_config.json", wrong);
    const std::string error =
        error_of([&] { import_hugging_face({.folder = folder, .out = f / "x"}); });
    CHECK_THAT(error, ContainsSubstring("generation_config.json: eos_token_id"));
    CHECK(error.find("--tokenizer PATH") == std::string::npos);
  }
}

TEST_CASE("exports keep unk_token and additional_special_tokens", "[chat_exports]") {
  const TempFolder f;
  const fs::path folder = chat_folder(f);
  Json settings = Json::parse(slurp(folder / "tokenizer_config.json"));
  settings["unk_token"] = "<|endoftext|>";
  settings["additional_special_tokens"] = {"<|im_start|>", {{"content", "<|im_end|>"}}};
  write_file(folder / "tokenizer_config.json", settings.dump());
  import_hugging_face({.folder = folder, .out = f / "run"});
  export_hugging_face({.run = f / "run", .out = f / "again"});
  const Json written = Json::parse(slurp(f / "again/tokenizer_config.json"));
  for (const char* key : {"unk_token", "additional_special_tokens"})
    CHECK(written[key] == settings[key]);
  CHECK(!written.contains("mask_token"));
}

TEST_CASE("named chat templates pass through GGUF files", "[chat_exports]") {
  const TempFolder f;
  const fs::path folder = chat_folder(f);
  Json settings = Json::parse(slurp(folder / "tokenizer_config.json"));
  for (const bool has_default : {true, false}) {
    INFO(has_default);
    Json templates = Json::array();
    if (has_default) templates.push_back({{"name", "default"}, {"template", tuned_template}});
    templates.push_back({{"name", "tool_use"}, {"template", "tools"}});
    templates.push_back({{"name", "rag"}, {"template", "documents"}});
    settings["chat_template"] = templates;
    write_file(folder / "tokenizer_config.json", settings.dump());
    const std::string name = has_default ? "with" : "without";
    import_hugging_face({.folder = folder, .out = f / name});
    CHECK((describe_chat(*read_state(find_checkpoint(f / name)).tokenizer).find("no template") !=
           std::string::npos) == !has_default);
    export_gguf({.run = f / name, .out = f / ("gguf-" + name)});
    import_gguf({.folder = f / ("gguf-" + name) / "model.gguf", .out = f / ("again-" + name)});
    export_hugging_face({.run = f / ("again-" + name), .out = f / ("hf-again-" + name)});
    CHECK(Json::parse(slurp(f / ("hf-again-" + name) / "tokenizer_config.json"))["chat_template"] ==
          templates);
  }
}

}  // namespace
