// The keys of config.json for the families of the kind "llama", and the differences between the
// families. Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/formats/family.h"

namespace lathe {

/// The differences between the families.
struct LlamaVariant {
  /// Which layers may have a sliding window: none, all of them, or those that layer_types lists.
  enum class Windows : uint8_t { none, all, listed };

  std::string model_type, architecture;
  std::string gguf_name{};  ///< empty: there is no GGUF form that this build writes
  bool qkv_bias = false;
  std::string qk_norm = "none";  ///< a value of model.qk_norm_over, or "none": no norm of q and k
  std::string norm_position = "pre";
  /// Gemma's GELU, scaled embeddings, norms with 1 + weight, and query_pre_attn_scalar.
  bool is_gemma = false;
  bool caps_attention = false, caps_logits = false;  ///< whether config.json has softcaps of these
  double attention_softcap = 0, logit_softcap = 0;   ///< the defaults; 0: none
  Windows windows = Windows::none;
  bool slides = false;              ///< whether the window applies without use_sliding_window
  int64_t window = 4096;            ///< the default of sliding_window; 0: none
  std::string window_layers = "1";  ///< layers with a window if there is no layer_types
  bool counts_full_layers = false;  ///< if so, all but the first max_window_layers have one (Qwen)
  bool lists_rope_layers = false;   ///< SmolLM3's no_rope_layers
  bool has_local_rope = false;      ///< Gemma 3's rope_local_base_freq
  double rope_theta = 10000;        ///< the default
  double norm_eps = 1e-6;           ///< the default
  bool tie_weights = false;         ///< the default
  bool exported = true;             ///< whether models are written as this family
  /// num_key_value_heads may be absent and is then the number of heads. In the other families,
  /// transformers has a different default.
  bool kv_heads_optional = true;
  /// head_dim may be absent and is then hidden_size / num_attention_heads.
  bool head_dim_optional = true;
};

/// Reads a config.json; `most` is the wanted context, or 0 for all. Throws the errors of
/// ConfigKeys.
ModelKeys read_llama(const LlamaVariant& variant, ConfigKeys& keys, int64_t most);
/// Returns a model's config.json; nullopt where the family has no such model.
std::optional<Json> write_llama(const LlamaVariant& variant, const AnyConfig& own);

/// The sizes of attention. A 0 in the config is replaced by the model's default.
struct LlamaShape {
  int64_t heads, groups, width;
  explicit LlamaShape(const AnyConfig& own)
      : heads(value_of<int64_t>(own, "n_head")),
        groups(value_of<int64_t>(own, "n_kv_head") > 0 ? value_of<int64_t>(own, "n_kv_head")
                                                       : heads),
        width(value_of<int64_t>(own, "head_dim") > 0 ? value_of<int64_t>(own, "head_dim")
                                                     : value_of<int64_t>(own, "n_embd") / heads) {}
};

}  // namespace lathe
