// Defines the family GPT-2 (Radford et al. 2019), in the form of transformers' GPT2LMHeadModel.
#include "train/formats/family.h"

namespace lathe {
namespace {

ModelKeys read(ConfigKeys& c, int64_t most) {
  const int64_t channels = c.whole("n_embd", 1, 100000);
  c.only("n_inner", {4 * channels});

  // All three names stand for the same formula.
  c.only("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
  c.only("layer_norm_epsilon", {1e-5});
  c.only("scale_attn_weights", {true});
  c.only("scale_attn_by_inverse_layer_idx", {false});
  c.pass({"reorder_and_upcast_attn", "n_ctx", "embd_pdrop", "attn_pdrop", "summary_activation",
          "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"});

  const double dropout = c.real("resid_pdrop", 0.1);
  if (!(dropout >= 0 && dropout < 1)) c.refuse("resid_pdrop", "it must be from 0 to below 1");
  return {{"n_layer", c.whole("n_layer", 1, 1000)},
          {"n_head", c.whole("n_head", 1, 1000)},
          {"n_embd", channels},
          {"block_size", context_of(c.whole("n_positions", 1, 1000000), most)},
          {"vocab_size", c.whole("vocab_size", 1, 10000000)},
          {"dropout", dropout},
          {"bias", true},
          {"tie_weights", c.flag("tie_word_embeddings", true)}};
}

std::optional<Json> write(const AnyConfig& own) {
  const auto size = [&](const char* key) { return value_of<int64_t>(own, key); };
  const double dropout = value_of<double>(own, "dropout");
  return Json{{"vocab_size", size("vocab_size")},
              {"n_positions", size("block_size")},
              {"n_embd", size("n_embd")},
              {"n_layer", size("n_layer")},
              {"n_head", size("n_head")},
              {"n_inner", nullptr},
              {"activation_function", "gelu_new"},
              {"resid_pdrop", dropout},
              {"embd_pdrop", dropout},
              {"attn_pdrop", 0.0},
              {"layer_norm_epsilon", 1e-5},
              {"scale_attn_weights", true},
              {"scale_attn_by_inverse_layer_idx", false},
              {"reorder_and_upcast_attn", false},
              {"tie_word_embeddings", value_of<bool>(own, "tie_weights")}};
}

GGUFMetadata gpt2_gguf(const AnyConfig& own) {
  const auto size = [&](const char* key) {
    return static_cast<uint32_t>(value_of<int64_t>(own, key));
  };
  return {{"block_count", size("n_layer")},         {"context_length", size("block_size")},
          {"embedding_length", size("n_embd")},     {"feed_forward_length", 4 * size("n_embd")},
          {"attention.head_count", size("n_head")}, {"attention.layer_norm_epsilon", 1e-5F},
          {"vocab_size", size("vocab_size")}};
}

ModelKeys read_gguf(ConfigKeys& c, const GGUFFacts& facts, int64_t most) {
  const auto key = [](const char* name) { return std::string("gpt2.") + name; };
  const int64_t channels = c.whole(key("embedding_length"), 1, 100000);
  c.only(key("feed_forward_length"), {4 * channels});
  c.only(key("attention.causal"), {true});
  c.only(key("attention.layer_norm_epsilon"), {1e-5});
  return {{"n_layer", c.whole(key("block_count"), 1, 1000)},
          {"n_head", c.whole(key("attention.head_count"), 1, 1000)},
          {"n_embd", channels},
          {"block_size", context_of(c.whole(key("context_length"), 1, 1000000), most)},
          {"vocab_size", read_gguf_vocabulary(c, facts)},
          {"dropout", 0.0},
          {"bias", true},
          {"tie_weights", facts.tied}};
}

}  // namespace

Family gpt2_family() {
  Family f{.model_type = "gpt2",
           .architecture = "GPT2LMHeadModel",
           .kind = "gpt",
           .prefix = "transformer."};

  f.tensors = {
      {.ours = "tokens.weight", .theirs = "transformer.wte.weight", .gguf = "token_embd.weight"},
      {.ours = "positions.weight",
       .theirs = "transformer.wpe.weight",
       .gguf = "position_embd.weight",
       .is_float32_in_gguf = true},
      {.ours = "head.weight", .theirs = "lm_head.weight", .gguf = "output.weight"}};

  // In transformers, the linear layers are Conv1D, whose weights are [inputs, outputs].
  const auto add = [&](const std::string& ours, const std::string& theirs, const std::string& gguf,
                       bool product) {
    f.tensors.push_back({.ours = ours + ".weight",
                         .theirs = "transformer." + theirs + ".weight",
                         .gguf = gguf + ".weight",
                         .transposed = product});
    f.tensors.push_back({.ours = ours + ".bias",
                         .theirs = "transformer." + theirs + ".bias",
                         .gguf = gguf + ".bias",
                         .always = true});
  };

  add("norm", "ln_f", "output_norm", false);
  add("blocks.#.norm1", "h.#.ln_1", "blk.#.attn_norm", false);
  add("blocks.#.attn.qkv", "h.#.attn.c_attn", "blk.#.attn_qkv", true);
  add("blocks.#.attn.proj", "h.#.attn.c_proj", "blk.#.attn_output", true);
  add("blocks.#.norm2", "h.#.ln_2", "blk.#.ffn_norm", false);
  add("blocks.#.mlp.up", "h.#.mlp.c_fc", "blk.#.ffn_up", true);
  add("blocks.#.mlp.down", "h.#.mlp.c_proj", "blk.#.ffn_down", true);

  // Older files also hold the causal masks, which are not read.
  f.buffers = {"h.#.attn.bias", "h.#.attn.masked_bias"};

  f.read = read;
  f.write = write;
  f.gguf_name = "gpt2";
  f.gguf = gpt2_gguf;
  f.read_gguf = read_gguf;
  return f;
}

}  // namespace lathe
