// Llama (Touvron et al. 2023) and the families with the same computation: Mistral without a sliding
// window, Qwen 2 with biases of queries, keys and values, Qwen 3 with norms of queries and keys.
#include "train/formats/llama_gguf.h"

namespace lathe {
namespace {

/// The differences between the families.
struct Variant {
  const char* model_type;
  const char* architecture;
  const char* gguf_name;
  bool qkv_bias, qk_norm;
  bool slides;    ///< sliding_window applies unless it is null; an absent one is 4096
  bool exported;  ///< whether models are written as this family
  /// num_key_value_heads may be absent and is then the number of heads. In the other families
  /// transformers has a default of another value.
  bool groups_may_lack;
  /// head_dim may be absent and is then hidden_size / num_attention_heads.
  bool width_may_lack;
};

/// Reads the keys of positions: rope_parameters, or rope_theta and rope_scaling, which transformers
/// wrote before version 5.
void read_rope(ConfigKeys& c, ModelKeys& model) {
  const bool together = c.has("rope_parameters");
  ConfigKeys rope = c.part(together ? "rope_parameters" : "rope_scaling");
  // rope_theta may be a key of config.json itself; the inner one has precedence.
  const double theta = c.real("rope_theta", 10000.0);
  model["rope_theta"] = rope.real("rope_theta", theta);

  // Older files have "type" in place of "rope_type"; some have both.
  const std::string old = rope.text("type", "default"), type = rope.text("rope_type", old);
  if (rope.has("type") && old != type)
    rope.refuse("type", "rope_type = \"" + type + "\" says otherwise");

  if (type == "linear") {
    model["rope_scaling"] = type;
    model["rope_factor"] = rope.real("factor");
  } else if (type == "llama3") {
    model["rope_scaling"] = type;
    model["rope_factor"] = rope.real("factor");
    model["rope_low_freq_factor"] = rope.real("low_freq_factor");
    model["rope_high_freq_factor"] = rope.real("high_freq_factor");
    model["rope_original_context"] = rope.whole("original_max_position_embeddings", 1, 1000000);
  } else if (type == "yarn") {
    model["rope_scaling"] = type;
    model["rope_factor"] = rope.real("factor");
    model["rope_beta_fast"] = rope.real("beta_fast", 32);
    model["rope_beta_slow"] = rope.real("beta_slow", 1);
    model["rope_attention_factor"] = rope.real("attention_factor", 0);
    model["rope_original_context"] = rope.whole("original_max_position_embeddings", 1, 100000000);
    rope.only("truncate", {true});
  } else if (type != "default") {
    rope.refuse(rope.has("rope_type") ? "rope_type" : "type",
                "this build computes default, linear, llama3 and yarn alone");
  }

  rope.only("partial_rotary_factor", {1.0});
  c.only("partial_rotary_factor", {1.0});
  c.only("rope_interleaved", {false});
  rope.finish();
}

/// Checks that a sliding window is not shorter than the context, to all of which a model attends.
void read_window(ConfigKeys& c, bool slides, int64_t context) {
  slides = c.flag("use_sliding_window", slides);
  for (const std::string& type : c.texts("layer_types")) {
    if (type != "full_attention" && type != "sliding_attention")
      c.refuse("layer_types", "this build computes full_attention alone");
    slides = slides || type == "sliding_attention";
  }
  // Which layers have a window does not matter, since a short one is refused.
  c.pass({"max_window_layers"});
  if (c.is_null("sliding_window")) return;
  const int64_t window = c.whole("sliding_window", 1, int64_t{1} << 40, 4096);
  if (slides && window < context)
    c.refuse("sliding_window",
             str("this build attends to the whole context of ", context,
                 " tokens; give --block-size ", window, " to take no more than the window"));
}

std::optional<int64_t> optional(bool may_lack, int64_t value) {
  return may_lack ? std::optional(value) : std::nullopt;
}

ModelKeys read(const Variant& variant, ConfigKeys& c, int64_t most) {
  const int64_t heads = c.whole("num_attention_heads", 1, 1000),
                channels = c.whole("hidden_size", 1, 100000);

  const int64_t context = context_of(c.whole("max_position_embeddings", 1, 1000000), most);
  ModelKeys model{{"n_layer", c.whole("num_hidden_layers", 1, 1000)},
                  {"n_head", heads},
                  {"n_kv_head", c.whole("num_key_value_heads", 1, 1000,
                                        optional(variant.groups_may_lack, heads))},
                  {"n_embd", channels},
                  {"head_dim", c.whole("head_dim", 1, 100000,
                                       optional(variant.width_may_lack, channels / heads))},
                  {"n_inner", c.whole("intermediate_size", 1, 1000000)},
                  {"block_size", context},
                  {"vocab_size", c.whole("vocab_size", 1, 10000000)},
                  {"norm_eps", c.real("rms_norm_eps", 1e-6)},
                  {"qkv_bias", variant.qkv_bias},
                  {"qk_norm", variant.qk_norm},
                  {"tie_weights", c.flag("tie_word_embeddings", false)}};

  // Any other value would change the computation.
  c.only("hidden_act", {"silu", "swish"});
  c.only("attention_bias", {false});
  c.only("mlp_bias", {false});
  c.pass({"attention_dropout", "pretraining_tp", "is_llama_config", "transformers.js_config"});
  read_rope(c, model);
  read_window(c, variant.slides, context);
  return model;
}

std::optional<Json> write(const Variant& variant, const AnyConfig& own) {
  // The family fixes whether there are biases and norms. Another family may have this model.
  if (!variant.exported || value_of<bool>(own, "qkv_bias") != variant.qkv_bias ||
      value_of<bool>(own, "qk_norm") != variant.qk_norm)
    return std::nullopt;

  const auto size = [&](const char* key) { return value_of<int64_t>(own, key); };
  const auto real = [&](const char* key) { return value_of<double>(own, key); };
  const LlamaShape shape(own);

  Json scaling;
  const auto& type = value_of<std::string>(own, "rope_scaling");
  if (type != "none") scaling = {{"rope_type", type}, {"factor", real("rope_factor")}};
  if (type == "llama3") {
    scaling["low_freq_factor"] = real("rope_low_freq_factor");
    scaling["high_freq_factor"] = real("rope_high_freq_factor");
    scaling["original_max_position_embeddings"] = size("rope_original_context");
  }
  if (type == "yarn") {
    scaling["beta_fast"] = real("rope_beta_fast");
    scaling["beta_slow"] = real("rope_beta_slow");
    scaling["original_max_position_embeddings"] = size("rope_original_context");
    // 0 stands for YaRN's formula, which applies where the key is absent.
    if (real("rope_attention_factor") > 0)
      scaling["attention_factor"] = real("rope_attention_factor");
  }

  return Json{{"vocab_size", size("vocab_size")},
              {"max_position_embeddings", size("block_size")},
              {"hidden_size", size("n_embd")},
              {"intermediate_size", size("n_inner")},
              {"num_hidden_layers", size("n_layer")},
              {"num_attention_heads", shape.heads},
              {"num_key_value_heads", shape.groups},
              {"head_dim", shape.width},
              {"hidden_act", "silu"},
              {"rms_norm_eps", real("norm_eps")},
              {"rope_theta", real("rope_theta")},
              {"rope_scaling", scaling},
              {"attention_bias", false},
              {"attention_dropout", 0.0},
              {"tie_word_embeddings", value_of<bool>(own, "tie_weights")}};
}

Family family(const Variant& variant) {
  Family f{.model_type = variant.model_type,
           .architecture = variant.architecture,
           .kind = "llama",
           .prefix = "model."};

  f.tensors = {
      {.ours = "tokens.weight", .theirs = "model.embed_tokens.weight", .gguf = "token_embd.weight"},
      {.ours = "norm.weight", .theirs = "model.norm.weight", .gguf = "output_norm.weight"},
      {.ours = "head.weight", .theirs = "lm_head.weight", .gguf = "output.weight"},
  };

  const auto add = [&](const std::string& ours, const std::string& theirs,
                       const std::string& gguf_name,
                       TensorRule::Rows rows = TensorRule::Rows::as_they_are) {
    // Most layers have no bias, and a rule that matches no parameter has no effect.
    for (const char* part : {".weight", ".bias"}) {
      f.tensors.push_back({.ours = "blocks.#." + ours + part,
                           .theirs = "model.layers.#." + theirs + part,
                           .gguf = "blk.#." + gguf_name + part,
                           .gguf_rows = rows});
    }
  };

  // Only the architecture "llama" has the channels of a pair next to each other.
  const bool pairs = variant.gguf_name == std::string("llama");
  using Rows = TensorRule::Rows;

  add("norm1", "input_layernorm", "attn_norm");
  add("attn.q", "self_attn.q_proj", "attn_q", pairs ? Rows::pairs_of_heads : Rows::as_they_are);
  add("attn.k", "self_attn.k_proj", "attn_k", pairs ? Rows::pairs_of_groups : Rows::as_they_are);
  add("attn.v", "self_attn.v_proj", "attn_v");
  add("attn.q_norm", "self_attn.q_norm", "attn_q_norm");
  add("attn.k_norm", "self_attn.k_norm", "attn_k_norm");
  add("attn.proj", "self_attn.o_proj", "attn_output");
  add("norm2", "post_attention_layernorm", "ffn_norm");
  add("mlp.gate", "mlp.gate_proj", "ffn_gate");
  add("mlp.up", "mlp.up_proj", "ffn_up");
  add("mlp.down", "mlp.down_proj", "ffn_down");

  // Older files have the frequencies of positions, which follow from the config.
  f.buffers = {"layers.#.self_attn.rotary_emb.inv_freq"};

  f.read = [variant](ConfigKeys& keys, int64_t most) { return read(variant, keys, most); };
  f.write = [variant](const AnyConfig& own) { return write(variant, own); };
  f.gguf_name = variant.gguf_name;
  f.gguf = llama_gguf;
  f.gguf_tensors = llama_gguf_tensors;
  f.read_gguf = [variant](ConfigKeys& keys, const GGUFFacts& facts, int64_t most) {
    ModelKeys model = read_llama_gguf(keys, facts, most);
    model["qkv_bias"] = variant.qkv_bias;
    model["qk_norm"] = variant.qk_norm;
    return model;
  };
  return f;
}

}  // namespace

Family llama_family() {
  return family({"llama", "LlamaForCausalLM", "llama", false, false, false, true, true, true});
}
Family mistral_family() {
  return family({"mistral", "MistralForCausalLM", "llama", false, false, true, false, false, true});
}
Family qwen2_family() {
  return family({"qwen2", "Qwen2ForCausalLM", "qwen2", true, false, false, true, false, true});
}
Family qwen3_family() {
  return family({"qwen3", "Qwen3ForCausalLM", "qwen3", false, true, false, true, false, false});
}

}  // namespace lathe
