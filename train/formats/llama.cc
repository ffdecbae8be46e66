// Defines the families of the kind "llama": Llama (Touvron et al. 2023) and the families that
// differ from Llama only in the points that LlamaVariant lists.
#include "train/formats/llama_gguf.h"
#include "train/formats/llama_keys.h"

namespace lathe {
namespace {

using Windows = LlamaVariant::Windows;

Family family(const LlamaVariant& variant) {
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
    // Add a rule for the bias of every layer. A rule that matches no parameter has no effect.
    for (const char* part : {".weight", ".bias"}) {
      f.tensors.push_back({.ours = "blocks.#." + ours + part,
                           .theirs = "model.layers.#." + theirs + part,
                           .gguf = "blk.#." + gguf_name + part,
                           .gguf_rows = rows});
    }
  };

  // Of GGUF's architectures, only "llama" stores the two channels of a rotary pair next to each
  // other.
  const bool pairs = variant.gguf_name == "llama";
  using Rows = TensorRule::Rows;

  // Gemma's files hold the weights of norms minus 1.
  const auto add_norm = [&](const std::string& ours, const std::string& theirs,
                            const std::string& gguf_name) {
    add(ours, theirs, gguf_name);
    for (auto rule = f.tensors.end() - 2; rule != f.tensors.end(); ++rule)
      rule->shift = variant.is_gemma ? -1 : 0;
  };
  if (variant.is_gemma) f.tensors[1].shift = -1;

  add_norm("norm1", "input_layernorm", "attn_norm");
  add("attn.q", "self_attn.q_proj", "attn_q",
      pairs ? Rows::interleaved_query_heads : Rows::as_they_are);
  add("attn.k", "self_attn.k_proj", "attn_k",
      pairs ? Rows::interleaved_kv_heads : Rows::as_they_are);
  add("attn.v", "self_attn.v_proj", "attn_v");
  add_norm("attn.q_norm", "self_attn.q_norm", "attn_q_norm");
  add_norm("attn.k_norm", "self_attn.k_norm", "attn_k_norm");
  add("attn.proj", "self_attn.o_proj", "attn_output");
  // If the branches of a block have norms on their outputs, transformers names the norms
  // differently.
  const bool is_pre = variant.norm_position == "pre";
  add_norm("norm2", is_pre ? "post_attention_layernorm" : "pre_feedforward_layernorm", "ffn_norm");
  if (!is_pre) {
    add_norm("post_norm1", "post_attention_layernorm", "post_attention_norm");
    add_norm("post_norm2", "post_feedforward_layernorm", "post_ffw_norm");
  }
  add("mlp.gate", "mlp.gate_proj", "ffn_gate");
  add("mlp.up", "mlp.up_proj", "ffn_up");
  add("mlp.down", "mlp.down_proj", "ffn_down");

  // Older files also hold the rotary frequencies, which follow from the config.
  f.buffers = {"layers.#.self_attn.rotary_emb.inv_freq"};

  f.read = [variant](ConfigKeys& keys, int64_t most) { return read_llama(variant, keys, most); };
  f.write = [variant](const AnyConfig& own) { return write_llama(variant, own); };
  if (variant.gguf_name.empty()) return f;
  f.gguf_name = variant.gguf_name;
  f.gguf = [pairs](const AnyConfig& own) {
    if (!pairs && value_of<std::string>(own, "rope_scaling") == "llama3")
      fail(Exit::usage,
           "GGUF files of this architecture can't hold model.rope_scaling = \"llama3\"; export to "
           "Hugging Face's format (leave --format out)");
    return llama_gguf(own);
  };
  // Of GGUF's architectures, only "llama" has the tensor for llama3's RoPE scaling.
  if (pairs) f.gguf_tensors = llama_gguf_tensors;
  f.read_gguf = [variant](ConfigKeys& keys, const GGUFFacts& facts, int64_t most) {
    ModelKeys model = read_llama_gguf(keys, facts, most);
    model["qkv_bias"] = variant.qkv_bias;
    model["qk_norm"] = variant.qk_norm != "none";
    return model;
  };
  return f;
}

}  // namespace

Family llama_family() {
  return family({.model_type = "llama", .architecture = "LlamaForCausalLM", .gguf_name = "llama"});
}
Family mistral_family() {
  return family({.model_type = "mistral",
                 .architecture = "MistralForCausalLM",
                 .gguf_name = "llama",
                 .windows = Windows::all,
                 .slides = true,
                 .kv_heads_optional = false});
}
Family qwen2_family() {
  return family({.model_type = "qwen2",
                 .architecture = "Qwen2ForCausalLM",
                 .gguf_name = "qwen2",
                 .qkv_bias = true,
                 .windows = Windows::listed,
                 .has_max_window_layers = true,
                 .kv_heads_optional = false});
}
Family qwen3_family() {
  return family({.model_type = "qwen3",
                 .architecture = "Qwen3ForCausalLM",
                 .gguf_name = "qwen3",
                 .qk_norm = "head",
                 .windows = Windows::listed,
                 .has_max_window_layers = true,
                 .kv_heads_optional = false,
                 .head_dim_optional = false});
}
Family olmo2_family() {
  return family({.model_type = "olmo2",
                 .architecture = "Olmo2ForCausalLM",
                 .qk_norm = "projection",
                 .norm_position = "post",
                 .norm_eps = 1e-5});
}
Family smollm3_family() {
  return family({.model_type = "smollm3",
                 .architecture = "SmolLM3ForCausalLM",
                 .windows = Windows::listed,
                 .window = 0,
                 .lists_rope_layers = true,
                 .rope_theta = 2e6,
                 .tie_weights = true,
                 .kv_heads_optional = false});
}
Family gemma2_family() {
  return family({.model_type = "gemma2",
                 .architecture = "Gemma2ForCausalLM",
                 .norm_position = "both",
                 .is_gemma = true,
                 .caps_attention = true,
                 .caps_logits = true,
                 .attention_softcap = 50,
                 .logit_softcap = 30,
                 .windows = Windows::listed,
                 .slides = true,
                 .window_layers = "10",
                 .tie_weights = true,
                 .kv_heads_optional = false,
                 .head_dim_optional = false});
}
Family gemma3_family() {
  return family({.model_type = "gemma3_text",
                 .architecture = "Gemma3ForCausalLM",
                 .qk_norm = "head",
                 .norm_position = "both",
                 .is_gemma = true,
                 .caps_logits = true,
                 .windows = Windows::listed,
                 .slides = true,
                 .has_local_rope = true,
                 .rope_theta = 1e6,
                 .tie_weights = true,
                 .kv_heads_optional = false,
                 .head_dim_optional = false});
}

}  // namespace lathe
