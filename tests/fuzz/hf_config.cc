// Fuzzes config.json and the index of a Hugging Face folder.
#include "tests/fuzz/fuzz.h"
#include "train/formats/family.h"
#include "train/formats/tensor_files.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  return {
      R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 16, "vocab_size": 300,
 "activation_function": "gelu_new", "resid_pdrop": 0.1, "n_inner": null})",
      R"({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
 "num_hidden_layers": 2, "max_position_embeddings": 16, "vocab_size": 300, "intermediate_size": 24, "rms_norm_eps": 1e-05,
 "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "hidden_act": "silu", "attention_bias": false})",
      R"({"model_type": "mistral", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2,
 "max_position_embeddings": 16, "vocab_size": 300, "intermediate_size": 24, "sliding_window": 16, "rope_theta": 1e4,
 "rope_scaling": {"type": "linear", "factor": 2.0}})",
      R"({"model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2,
 "max_position_embeddings": 16, "vocab_size": 300, "intermediate_size": 24, "use_sliding_window": false,
 "sliding_window": 8, "max_window_layers": 2, "layer_types": ["full_attention", "full_attention"]})",
      R"({"model_type": "smollm3", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
 "num_hidden_layers": 2, "max_position_embeddings": 16, "vocab_size": 300, "intermediate_size": 24,
 "no_rope_layers": [1, 0], "use_sliding_window": true, "sliding_window": 8})",
      R"({"model_type": "gemma3_text", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
 "num_hidden_layers": 2, "max_position_embeddings": 16, "vocab_size": 300, "intermediate_size": 24,
 "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "query_pre_attn_scalar": 4,
 "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": null, "mscale": 1.0, "mscale_all_dim": 0.7},
 "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}, "final_logit_softcapping": 30.0})",
      R"({"metadata": {"total_size": 8}, "weight_map": {"a": "x.safetensors", "b": "y.safetensors"}})"};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  const std::string text(fuzz::text_of(data, size));
  try {
    for (const auto& [tensor, file] : parse_index(text, "index"))
      fuzz::must(file.find('/') == std::string::npos, "a file lies in the folder");
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::checkpoint, "an invalid index gives Exit::checkpoint");
  }
  try {
    Json json = parse_json(text, "here", Exit::checkpoint);
    const Family& family = family_of(json, "here");
    ConfigKeys keys(std::move(json), "here");
    pass_common_keys(keys);
    const ModelKeys model = family.read(keys, 0);
    keys.finish();
    fuzz::must(model.contains("n_layer") && model.contains("vocab_size"),
               "a config has the sizes of its model");
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::checkpoint, "an invalid config gives Exit::checkpoint");
  }
  return 0;
}
