// Declares functions that read and write config.json for the families of the kind "llama", and
// describes the differences between the families. Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/formats/family.h"

namespace lathe {

/// Describes a family of the kind "llama" by the points in which such families differ.
struct LlamaVariant {
  /// Which layers may have a sliding window: no layer, all layers, or the layers that layer_types
  /// lists.
  enum class Windows : uint8_t { none, all, listed };

  std::string model_type, architecture;
  std::string gguf_name{};  ///< general.architecture in GGUF files; empty if this build writes no
                            ///< GGUF files of the family
  bool qkv_bias = false;
  std::string qk_norm = "none";  ///< a value of model.qk_norm_over; "none" if queries and keys have
                                 ///< no norm
  std::string norm_position = "pre";
  /// Whether the family has Gemma's GELU, scaled embeddings, norms with 1 + weight, and
  /// query_pre_attn_scalar.
  bool is_gemma = false;
  bool caps_attention = false, caps_logits = false;  ///< whether config.json has these softcaps
  double attention_softcap = 0, logit_softcap = 0;   ///< the default softcaps; 0: no cap
  Windows windows = Windows::none;
  bool slides = false;              ///< whether the window applies without use_sliding_window
  int64_t window = 4096;            ///< the default of sliding_window; 0: no window
  std::string window_layers = "1";  ///< model.window_layers if config.json lacks layer_types
  bool has_max_window_layers =
      false;  ///< whether the first max_window_layers layers have no window (Qwen)
  bool lists_rope_layers = false;  ///< whether config.json has no_rope_layers (SmolLM3)
  bool has_local_rope = false;     ///< whether config.json has rope_local_base_freq (Gemma 3)
  double rope_theta = 10000;       ///< the default of rope_theta
  double norm_eps = 1e-6;          ///< the default of the norms' epsilon
  bool tie_weights = false;        ///< the default of tie_word_embeddings
  bool exported = true;            ///< whether an export may write models as this family
  /// Whether num_key_value_heads may be absent and is then num_attention_heads. In the other
  /// families, transformers has a different default, so the key is required.
  bool kv_heads_optional = true;
  /// Whether head_dim may be absent and is then hidden_size / num_attention_heads.
  bool head_dim_optional = true;
};

/// Reads a config.json. `most` is the wanted context length, or 0 for the context length that the
/// model was made for. Throws the errors of ConfigKeys and context_of().
ModelKeys read_llama(const LlamaVariant& variant, ConfigKeys& keys, int64_t most);
/// Returns a model's config.json; nullopt if the family can't represent the model.
std::optional<Json> write_llama(const LlamaVariant& variant, const AnyConfig& own);

/// The numbers of query heads and of key/value heads (`groups`), and the number of channels of a
/// head. A 0 in the config is replaced by the model's default.
struct AttentionSizes {
  int64_t heads, groups, width;
  explicit AttentionSizes(const AnyConfig& own)
      : heads(value_of<int64_t>(own, "n_head")),
        groups(value_of<int64_t>(own, "n_kv_head") > 0 ? value_of<int64_t>(own, "n_kv_head")
                                                       : heads),
        width(value_of<int64_t>(own, "head_dim") > 0 ? value_of<int64_t>(own, "head_dim")
                                                     : value_of<int64_t>(own, "n_embd") / heads) {}
};

}  // namespace lathe
