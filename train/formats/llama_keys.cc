#include "train/formats/llama_keys.h"

#include <cmath>
#include <variant>

#include "train/formats/rope_keys.h"

namespace lathe {
namespace {

using Windows = LlamaVariant::Windows;

std::optional<int64_t> optional(bool may_lack, int64_t value) {
  return may_lack ? std::optional(value) : std::nullopt;
}

/// Returns a softcap: `otherwise` if the key is absent, and 0, which means no cap, if the key is
/// null.
double read_softcap(ConfigKeys& c, const char* key, double otherwise) {
  const bool is_null = c.is_null(key);
  const double cap = c.real(key, is_null ? 0 : otherwise);
  if (!is_null && cap == 0 && c.has(key)) c.refuse(key, "a cap must not be 0; null means no cap");
  return cap;
}

/// Reads the keys that only Gemma has.
void read_gemma(const LlamaVariant& variant, ConfigKeys& c, ModelKeys& model) {
  c.only("hidden_activation", {"gelu_pytorch_tanh"});
  c.only("use_bidirectional_attention", {false});
  // transformers does not read these keys for Gemma 2 and 3.
  c.pass({"hidden_act", "cache_implementation"});
  model["activation"] = std::string("gelu");
  model["scale_embeddings"] = true;
  // model.query_pre_attn_scalar = 0 stands for the head dimension.
  const int64_t scalar = c.whole("query_pre_attn_scalar", 1, 1000000, 256);
  const bool is_width = scalar == std::get<int64_t>(model.at("head_dim"));
  model["query_pre_attn_scalar"] = is_width ? 0 : static_cast<double>(scalar);
  if (variant.caps_attention)
    model["attention_softcap"] =
        read_softcap(c, "attn_logit_softcapping", variant.attention_softcap);
  if (variant.caps_logits)
    model["logit_softcap"] = read_softcap(c, "final_logit_softcapping", variant.logit_softcap);
}

/// Returns whether a family can represent a model with these keys of [model].
bool represents(const LlamaVariant& variant, const AnyConfig& own) {
  const auto flag = [&](const char* key) { return value_of<bool>(own, key); };
  const auto real = [&](const char* key) { return value_of<double>(own, key); };
  const auto text = [&](const char* key) { return value_of<std::string>(own, key); };

  const std::string qk_norm = flag("qk_norm") ? text("qk_norm_over") : "none";
  if (flag("qkv_bias") != variant.qkv_bias || qk_norm != variant.qk_norm ||
      text("norm_position") != variant.norm_position)
    return false;

  if ((text("activation") == "gelu") != variant.is_gemma ||
      flag("scale_embeddings") != variant.is_gemma)
    return false;
  const double scalar = real("query_pre_attn_scalar");
  if (scalar != 0 && (!variant.is_gemma || scalar != std::floor(scalar))) return false;
  if ((real("attention_softcap") > 0 && !variant.caps_attention) ||
      (real("logit_softcap") > 0 && !variant.caps_logits))
    return false;

  const bool has_window = value_of<int64_t>(own, "sliding_window") > 0;
  const std::string windows = digits_of_layers(own, text("window_layers"));
  if (has_window && variant.windows == Windows::none) return false;
  // In a family whose layers all have a window, a model must have a window in every layer.
  if (variant.windows == Windows::all && (!has_window || windows.find('0') != std::string::npos))
    return false;

  const std::string ropes = digits_of_layers(own, text("rope_layers"));
  if (ropes.find('0') != std::string::npos && !variant.lists_rope_layers) return false;
  // In a family with a separate RoPE base for layers with a window, those layers have no RoPE
  // scaling. A model with one base for all layers therefore fits only if it has no scaling.
  const bool has_local = real("rope_local_theta") > 0;
  if (variant.has_local_rope && has_window && !has_local) return text("rope_scaling") == "none";
  return !has_local || variant.has_local_rope;
}

}  // namespace

ModelKeys read_llama(const LlamaVariant& variant, ConfigKeys& c, int64_t most) {
  const int64_t heads = c.whole("num_attention_heads", 1, 1000),
                channels = c.whole("hidden_size", 1, 100000);

  const int64_t positions = c.whole("max_position_embeddings", 1, 100000000);
  ModelKeys model{{"n_layer", c.whole("num_hidden_layers", 1, 1000)},
                  {"n_head", heads},
                  {"n_kv_head", c.whole("num_key_value_heads", 1, 1000,
                                        optional(variant.kv_heads_optional, heads))},
                  {"n_embd", channels},
                  {"head_dim", c.whole("head_dim", 1, 100000,
                                       optional(variant.head_dim_optional, channels / heads))},
                  {"n_inner", c.whole("intermediate_size", 1, 1000000)},
                  {"block_size", context_of(positions, most)},
                  {"vocab_size", c.whole("vocab_size", 1, 10000000)},
                  {"norm_position", variant.norm_position},
                  {"norm_eps", c.real("rms_norm_eps", variant.norm_eps)},
                  {"qkv_bias", variant.qkv_bias},
                  {"qk_norm", variant.qk_norm != "none"},
                  {"qk_norm_over", variant.qk_norm == "none" ? "head" : variant.qk_norm},
                  {"tie_weights", c.flag("tie_word_embeddings", variant.tie_weights)}};

  // The following keys must have one of the given values, because other values change the
  // computation.
  if (variant.is_gemma) {
    read_gemma(variant, c, model);
  } else {
    c.only("hidden_act", {"silu", "swish"});
  }
  c.only("attention_bias", {false});
  c.only("mlp_bias", {false});
  c.pass({"attention_dropout", "pretraining_tp", "is_llama_config", "transformers.js_config"});
  read_rope(variant, c, positions, model);
  read_layers(variant, c, model);
  return model;
}

std::optional<Json> write_llama(const LlamaVariant& variant, const AnyConfig& own) {
  // If this family can't represent the model, the caller tries the next family.
  if (!variant.exported || !represents(variant, own)) return std::nullopt;

  const auto size = [&](const char* key) { return value_of<int64_t>(own, key); };
  const auto real = [&](const char* key) { return value_of<double>(own, key); };
  const AttentionSizes shape(own);

  Json config{{"vocab_size", size("vocab_size")},
              {"max_position_embeddings", size("block_size")},
              {"hidden_size", size("n_embd")},
              {"intermediate_size", size("n_inner")},
              {"num_hidden_layers", size("n_layer")},
              {"num_attention_heads", shape.heads},
              {"num_key_value_heads", shape.groups},
              {"head_dim", shape.width},
              {"rms_norm_eps", real("norm_eps")},
              {"attention_bias", false},
              {"attention_dropout", 0.0},
              {"tie_word_embeddings", value_of<bool>(own, "tie_weights")}};

  if (variant.is_gemma) {
    const auto cap = [&](const char* key) {
      return real(key) > 0 ? Json(real(key)) : Json(nullptr);
    };
    const double scalar = real("query_pre_attn_scalar");
    config["hidden_activation"] = "gelu_pytorch_tanh";
    config["query_pre_attn_scalar"] = scalar > 0 ? static_cast<int64_t>(scalar) : shape.width;
    config["attn_logit_softcapping"] = cap("attention_softcap");
    config["final_logit_softcapping"] = cap("logit_softcap");
  } else {
    config["hidden_act"] = "silu";
  }

  write_rope(variant, own, config);
  write_layers(variant, own, config);
  return config;
}

}  // namespace lathe
