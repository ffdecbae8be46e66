// Tests how keys of config.json are converted to keys of [model] and back, for each model family
// that is related to Llama. tests/oracles/transformers compares the outputs of the models.
#include <cmath>

#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"
#include "tests/support/tokenizers.h"
#include "train/formats/gguf.h"
#include "train/formats/hugging_face.h"
#include "train/session/load.h"

namespace {

using namespace lathe;
using namespace lathe::test;

using FamilyKeys = std::vector<std::pair<std::string, ConfigValue>>;

/// Creates a run with one checkpoint of a small Llama model, and returns its folder. Elements of
/// vectors are multiples of 1/64, so that adding 1 is exact.
fs::path family_run(const TempFolder& f, const std::string& name, const FamilyKeys& keys) {
  RunConfig config;
  config.model.kind = "llama";
  config.model.own = find_model_kind("llama")->config;
  const FamilyKeys sizes{{"n_layer", int64_t{6}},     {"n_head", int64_t{4}},
                         {"n_kv_head", int64_t{2}},   {"head_dim", int64_t{6}},
                         {"n_embd", int64_t{8}},      {"n_inner", int64_t{12}},
                         {"block_size", int64_t{16}}, {"vocab_size", int64_t{20}}};
  for (const FamilyKeys& some : {sizes, keys}) {
    for (const auto& [key, value] : some)
      config.schema().set(&config, "model." + key, value, "here");
  }
  REQUIRE(!find_model_kind("llama")->check(config.model.own));

  const auto model = make_model(*find_model_kind("llama"), config.model.own, {}, 7);
  Snapshot snapshot;
  torch::manual_seed(1);
  for (const NamedParameter& p : parameters(*model)) {
    at::Tensor t = at::randn(p.parameter.sizes());
    if (t.dim() == 1) t = (t * 64).round() / 64 + 0.0;  // + 0.0 makes -0 a 0
    snapshot.held.push_back(t);
    snapshot.model.push_back(make_entry(p.path, t));
  }
  RunState state;
  state.config = config.schema().to_toml(&config, false);
  write_checkpoint(f / name / "checkpoints" / checkpoint_name(3), state, snapshot);
  return f / name;
}

const FamilyKeys gemma2_keys{{"norm_position", "both"},      {"activation", "gelu"},
                             {"scale_embeddings", true},     {"query_pre_attn_scalar", 5.0},
                             {"attention_softcap", 50.0},    {"logit_softcap", 30.0},
                             {"sliding_window", int64_t{4}}, {"window_layers", "10"}};
const FamilyKeys gemma3_keys{
    {"norm_position", "both"}, {"activation", "gelu"},         {"scale_embeddings", true},
    {"qk_norm", true},         {"sliding_window", int64_t{4}}, {"window_layers", "111110"},
    {"rope_theta", 1e6},       {"rope_local_theta", 1e4}};
const FamilyKeys olmo2_keys{{"norm_position", "post"},
                            {"qk_norm", true},
                            {"qk_norm_over", "projection"},
                            {"tie_weights", false}};

TEST_CASE("each family is exported with its model_type and imported with the same bytes and keys",
          "[families]") {
  const FamilyKeys yarn{{"rope_scaling", "yarn"}, {"rope_factor", 4.0}, {"rope_truncate", false}};
  const FamilyKeys windows{{"sliding_window", int64_t{4}}};
  const auto both = [](FamilyKeys a, const FamilyKeys& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  for (const auto& [type, keys] : std::vector<std::pair<std::string, FamilyKeys>>{
           {"llama", yarn},
           {"mistral", windows},
           {"mistral", both(windows, yarn)},
           {"qwen2", both(windows, {{"qkv_bias", true}, {"window_layers", "000011"}})},
           {"qwen3", both(windows, {{"qk_norm", true}})},
           {"olmo2", olmo2_keys},
           {"smollm3", {{"rope_layers", "1110"}}},
           {"smollm3", both(windows, {{"rope_layers", "110100"}, {"window_layers", "10"}})},
           {"gemma2", gemma2_keys},
           {"gemma2",
            {{"norm_position", "both"}, {"activation", "gelu"}, {"scale_embeddings", true}}},
           {"gemma3_text", gemma3_keys},
           {"gemma3_text",
            both(gemma3_keys, {{"rope_scaling", "linear"}, {"rope_factor", 8.0}})}}) {
    const TempFolder f;
    const fs::path run = family_run(f, "run", keys);
    export_hugging_face({.run = run, .out = f / "hf"});
    const Json written = Json::parse(slurp(f / "hf/config.json"));
    INFO(written.dump());
    CHECK(written["model_type"] == type);
    import_hugging_face({.folder = f / "hf", .out = f / "again", .tokenizer = "none"});
    CHECK(slurp(find_checkpoint(run) / "model.safetensors") ==
          slurp(find_checkpoint(f / "again") / "model.safetensors"));

    const RunState a = read_state(find_checkpoint(run)),
                   b = read_state(find_checkpoint(f / "again"));
    const RunConfig was = saved_config(a, run), is = saved_config(b, run);
    for (const Field& key : was.schema().fields()) {
      INFO(key.key);
      if (key.key.starts_with("model.") && key.key != "model.init")
        CHECK(toml_text(was.schema().get(&was, key)) == toml_text(is.schema().get(&is, key)));
    }
  }
}

TEST_CASE("Gemma's norm weights are exported minus 1, and those of other families unchanged",
          "[families]") {
  const TempFolder f;
  for (const auto& [name, keys, shift] :
       {std::tuple("gemma", gemma3_keys, -1.0), std::tuple("olmo", olmo2_keys, 0.0)}) {
    const fs::path run = family_run(f, name, keys), hf = f / (std::string(name) + "-hf");
    export_hugging_face({.run = run, .out = hf});
    const SafetensorsFile ours(find_checkpoint(run) / "model.safetensors"),
        theirs(hf / "model.safetensors");
    for (const auto& [own, other] :
         {std::pair("norm.weight", "model.norm.weight"),
          {"blocks.5.post_norm1.weight", "model.layers.5.post_attention_layernorm.weight"},
          {"blocks.0.post_norm2.weight", "model.layers.0.post_feedforward_layernorm.weight"},
          {"blocks.1.attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight"}}) {
      const TensorEntry &a = ours.at(own), &b = theirs.at(other);
      CHECK((entry_tensor(a, a.shape, "") + shift).equal(entry_tensor(b, b.shape, "")));
    }
    const TensorEntry &a = ours.at("blocks.0.attn.q.weight"),
                      &b = theirs.at("model.layers.0.self_attn.q_proj.weight");
    CHECK(entry_tensor(a, a.shape, "").equal(entry_tensor(b, b.shape, "")));
  }
}

/// Returns a config.json of a family with six layers, updated by `more`. A null value counts as a
/// missing key.
Json config_of(const std::string& type, const Json& more) {
  Json config{
      {"model_type", type},       {"hidden_size", 8},        {"num_attention_heads", 4},
      {"num_key_value_heads", 2}, {"head_dim", 6},           {"num_hidden_layers", 6},
      {"vocab_size", 20},         {"intermediate_size", 12}, {"max_position_embeddings", 16}};
  config.update(more);
  return config;
}

/// Returns the keys that a family reads from config_of(). If `error` is null, reading must succeed.
/// Otherwise, *error gets the message of the Error, or "" if there is none.
ModelKeys keys_of(const std::string& type, const Json& more, std::string* error = nullptr) {
  ModelKeys keys;
  const std::string what = error_of([&] {
    ConfigKeys config(config_of(type, more), "config.json");
    pass_common_keys(config);
    keys = family_of(config_of(type, more), "config.json").read(config, 0);
    config.finish();
  });
  INFO(what);
  if (error == nullptr) CHECK(what.empty());
  if (error != nullptr) *error = what;
  return keys;
}

template <class T>
T read_key(const std::string& type, const Json& more, const char* key, T otherwise = {}) {
  const ModelKeys keys = keys_of(type, more);
  return keys.contains(key) ? std::get<T>(keys.at(key)) : otherwise;
}

const Json nothing = nullptr;

Json types_of(const std::string& digits) {
  Json types = Json::array();
  for (const char digit : digits)
    types.push_back(digit == '1' ? "sliding_attention" : "full_attention");
  return types;
}

TEST_CASE("sliding windows are read as transformers defines them for each family", "[families]") {
  const auto window = [](const std::string& type, const Json& more) {
    const int64_t width = read_key<int64_t>(type, more, "sliding_window");
    return std::to_string(width) + ":" + read_key<std::string>(type, more, "window_layers", "none");
  };

  CHECK(window("mistral", Json::object()) == "4096:1");
  CHECK(window("mistral", {{"sliding_window", 5}}) == "5:1");
  CHECK(window("mistral", {{"sliding_window", nothing}}) == "0:none");

  // Qwen has windows only if use_sliding_window is true, in layer max_window_layers and later
  // layers.
  CHECK(window("qwen2", {{"sliding_window", 5}}) == "0:none");
  CHECK(window("qwen2", {{"sliding_window", 5}, {"use_sliding_window", true}}) == "0:none");
  CHECK(window("qwen2",
               {{"sliding_window", 5}, {"use_sliding_window", true}, {"max_window_layers", 4}}) ==
        "5:000011");
  CHECK(window("qwen3", {{"sliding_window", 5},
                         {"use_sliding_window", true},
                         {"layer_types", types_of("101010")}}) == "5:10");

  CHECK(window("gemma2", Json::object()) == "4096:10");
  CHECK(window("gemma2", {{"sliding_window", 5}, {"layer_types", types_of("110110")}}) == "5:110");
  CHECK(window("gemma3_text", {{"sliding_window", 5}}) == "5:111110");
  CHECK(window("gemma3_text", {{"sliding_window", 5}, {"sliding_window_pattern", 3}}) == "5:110");

  CHECK(window("smollm3", Json::object()) == "0:none");
  CHECK(window("smollm3", {{"sliding_window", 5}, {"use_sliding_window", true}}) == "5:0001");
  // In a family without windows, a window as long as the context is ignored.
  CHECK(window("llama", {{"sliding_window", 16}, {"use_sliding_window", true}}) == "0:none");
}

TEST_CASE("rotary positions of layers are read as transformers defines them", "[families]") {
  const auto layers = [](const Json& more) {
    return read_key<std::string>("smollm3", more, "rope_layers");
  };
  CHECK(layers(Json::object()) == "1110");
  CHECK(layers({{"num_hidden_layers", 3}}) == "1");
  CHECK(layers({{"no_rope_layer_interval", 2}}) == "10");
  CHECK(layers({{"no_rope_layers", {1, 1, 0, 1, 1, 0}}}) == "110");
  CHECK(layers({{"no_rope_layers", {1, 1, 1, 1, 1, 1, 0}}}) == "1");

  const auto bases = [](const Json& more) {
    return std::pair(read_key<double>("gemma3_text", more, "rope_theta"),
                     read_key<double>("gemma3_text", more, "rope_local_theta"));
  };
  CHECK(bases(Json::object()) == std::pair(1e6, 1e4));
  CHECK(bases({{"rope_theta", 5e5}, {"rope_local_base_freq", 2e4}}) == std::pair(5e5, 2e4));
  const Json nested{
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 3e5}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}};
  CHECK(bases({{"rope_parameters", nested}}) == std::pair(3e5, 3e4));
  CHECK(read_key<double>("gemma3_text", {{"rope_parameters", nested}}, "rope_factor") == 8);
  CHECK(read_key<double>("smollm3", Json::object(), "rope_theta") == 2e6);
}

TEST_CASE("YaRN's keys are read with the formulas of transformers", "[families]") {
  const auto yarn = [](Json more, const char* key) {
    more.update({{"rope_type", "yarn"}});
    if (!more.contains("factor")) more["factor"] = 8.0;
    return read_key<double>("llama", {{"rope_scaling", more}}, key);
  };
  const Json plain{{"original_max_position_embeddings", 4}};
  const auto with = [&](Json more) {
    more.update(plain);
    return more;
  };

  CHECK(yarn(plain, "rope_attention_factor") == 0);
  CHECK(yarn(with({{"attention_factor", 1.5}}), "rope_attention_factor") == 1.5);
  const double deep =
      yarn(with({{"mscale", 0.7}, {"mscale_all_dim", 1.3}}), "rope_attention_factor");
  CHECK(deep == Approx((0.07 * std::log(8.0) + 1) / (0.13 * std::log(8.0) + 1)).epsilon(1e-12));
  CHECK(yarn(with({{"mscale", 0.7}}), "rope_attention_factor") == 0);
  CHECK(yarn(with({{"mscale", 0.7}, {"mscale_all_dim", 1.3}, {"attention_factor", 2.0}}),
             "rope_attention_factor") == 2);

  CHECK(yarn(with({{"factor", nothing}}), "rope_factor") == 4);  // context 16 / original context 4
  const Json whole{{"rope_type", "yarn"}, {"factor", 2.0}};
  CHECK(read_key<int64_t>("llama", {{"rope_scaling", whole}}, "rope_original_context") == 16);
  CHECK(!read_key<bool>(
      "llama", {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"truncate", false}}}},
      "rope_truncate", true));
}

TEST_CASE(
    "a config.json value that Lathe does not support for a family is refused, and the error names "
    "the key",
    "[families]") {
  const auto refused = [](const std::string& type, const Json& more, const std::string& what) {
    INFO(type << more.dump());
    std::string error;
    keys_of(type, more, &error);
    CHECK_THAT(error, ContainsSubstring("config.json: " + what));
  };

  // These keys concern windows, and the layers that have one.
  refused("llama", {{"sliding_window", 5}, {"use_sliding_window", true}}, "sliding_window = 5");
  refused("olmo2", {{"sliding_window", 5}, {"layer_types", types_of("101010")}},
          "sliding_window = 5");
  refused("mistral", {{"layer_types", types_of("101010")}}, "layer_types");
  refused("qwen2", {{"layer_types", types_of("10")}}, "layer_types");
  refused("qwen2", {{"use_sliding_window", false}, {"layer_types", types_of("101010")}},
          "layer_types");
  refused("gemma2", {{"layer_types", {"chunked_attention"}}}, "layer_types");
  refused("gemma2", {{"sliding_window", 0}}, "\"sliding_window\" is 0");

  refused("gemma2", {{"hidden_activation", "relu"}}, "hidden_activation");
  refused("gemma2", {{"final_logit_softcapping", 0.0}}, "final_logit_softcapping = 0");
  refused("gemma2", {{"query_pre_attn_scalar", nothing}, {"head_dim", nothing}},
          "\"head_dim\" is null");
  refused("gemma3_text", {{"attn_logit_softcapping", 50.0}}, "attn_logit_softcapping");
  refused("gemma3_text", {{"use_bidirectional_attention", true}}, "use_bidirectional_attention");
  refused(
      "gemma3_text",
      {{"rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}}}},
      "rope_parameters: sliding_attention: rope_type");

  // Lists of the wrong length, or with other values, are refused.
  refused("smollm3", {{"no_rope_layers", {1, 0}}}, "no_rope_layers");
  refused("smollm3", {{"no_rope_layers", {1, 0, 2, 1, 1, 1}}}, "\"no_rope_layers\" is 2");
  refused("smollm3", {{"no_rope_layers", 3}}, "no_rope_layers = 3");
  refused("llama", {{"sliding_window_pattern", 6}}, "sliding_window_pattern = 6");
}

TEST_CASE("an export to GGUF of a family without a GGUF form is refused, and leaves no files",
          "[families]") {
  const TempFolder f;
  for (const auto& [name, keys, what] :
       {std::tuple("mistral", FamilyKeys{{"sliding_window", int64_t{4}}},
                   "model.sliding_window = 4"),
        std::tuple("gemma", gemma2_keys, "type gemma2"),
        std::tuple("olmo", olmo2_keys, "type olmo2")}) {
    const fs::path run = family_run(f, name, keys);
    CHECK_THAT(error_of([&] { export_gguf({.run = run, .out = f / "gguf"}); }),
               ContainsSubstring(what));
    CHECK(!fs::exists(f / "gguf"));
  }
  // A window as long as the context counts as no window.
  export_gguf(
      {.run = family_run(f, "whole", {{"sliding_window", int64_t{16}}}), .out = f / "gguf"});
  CHECK(fs::exists(f / "gguf/model.gguf"));
}

TEST_CASE("Gemma's tokenizer is read although it splits at spaces, which its normalizer replaces",
          "[families]") {
  BPEDefinition d = sentencepiece(SpaceBefore::none);
  Json json = bpe_to_json(d);
  const Json wanted = bpe_to_json(bpe_from_json(json, "here"));
  json["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}};
  json["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"String", " "}}},
                           {"behavior", "MergedWithPrevious"},
                           {"invert", false}};
  CHECK(bpe_to_json(bpe_from_json(json, "here")) == wanted);

  // Another split is refused, and so is a split at spaces without a normalizer that replaces them.
  Json other = json;
  other["pre_tokenizer"]["pattern"] = {{"String", "a"}};
  CHECK_THAT(error_of([&] { bpe_from_json(other, "here"); }),
             ContainsSubstring("pre-tokenizer Split"));
  json["normalizer"] = nullptr;
  CHECK_THAT(error_of([&] { bpe_from_json(json, "here"); }),
             ContainsSubstring("pre-tokenizer Split"));
}

TEST_CASE("a model that belongs to no family is not exported", "[families]") {
  const TempFolder f;
  int count = 0;
  for (const FamilyKeys& keys :
       std::vector<FamilyKeys>{{{"logit_softcap", 30.0}},
                               {{"norm_position", "post"}},
                               {{"scale_embeddings", true}},
                               {{"qk_norm", true}, {"rope_layers", "10"}},
                               {{"sliding_window", int64_t{4}}, {"rope_local_theta", 100.0}}}) {
    const fs::path run = family_run(f, "run" + std::to_string(count++), keys);
    CHECK_THAT(error_of([&] { export_hugging_face({.run = run, .out = f / "hf"}); }),
               ContainsSubstring("kind llama") && ContainsSubstring("--format onnx"));
    CHECK(!fs::exists(f / "hf"));
  }
}

}  // namespace
