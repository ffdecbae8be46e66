// LLaMA and its relatives (Touvron et al. 2023; Llama 3, Mistral, Qwen 2 and 3, OLMo 2, SmolLM3,
// Gemma 2 and 3 by their keys): RMS norm, rotary positions, fewer heads of keys and values than of
// queries, SwiGLU, an output head that may share the token embedding's weight. Shapes: B batch, T
// time, C channels, D channels of a head, V vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/models/model.h"

namespace lathe {

struct LlamaConfig {
  LATHE_FIELD(int64_t, n_layer, 4, "transformer blocks", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_head, 4, "attention heads of the queries", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_kv_head, 0,
              "heads of the keys and values; must divide n_head; 0: as many as n_head",
              between(0, 1000).fixed())
  LATHE_FIELD(int64_t, n_embd, 128, "channels of the residual stream", between(1, 100000).fixed())
  LATHE_FIELD(int64_t, head_dim, 0, "channels of a head, even; 0: n_embd / n_head",
              between(0, 100000).fixed())
  LATHE_FIELD(int64_t, n_inner, 0,
              "hidden units of the feed-forward part; 0: 8/3 n_embd, rounded up to a multiple of "
              "32, which is as many "
              "parameters as gpt's has",
              between(0, 1000000).fixed())
  LATHE_FIELD(int64_t, block_size, 64, "context length in tokens", between(1, 1000000).fixed())
  LATHE_FIELD(int64_t, vocab_size, 0, "tokens the model knows; 0: as many as the data has",
              between(0, 10000000).fixed())
  LATHE_FIELD(double, dropout, 0.0,
              "share of embeddings and residual branches zeroed in training; attention "
              "probabilities are not dropped",
              below(0, 1).fixed())
  LATHE_FIELD(double, rope_theta, 10000.0, "rotary positions: base of the angles",
              between(1, 1e12).fixed())
  LATHE_FIELD(std::string, rope_scaling, "none",
              "how the angles are changed for longer contexts; linear: all over rope_factor; "
              "llama3, yarn: the slow ones alone",
              one_of({"none", "linear", "llama3", "yarn"}).fixed())
  LATHE_FIELD(double, rope_factor, 1.0, "rope_scaling: what angles are divided by",
              between(1, 1e6).fixed())
  LATHE_FIELD(double, rope_low_freq_factor, 1.0,
              "llama3: angles with fewer waves than this in rope_original_context are slow",
              between(1e-3, 1e6).fixed())
  LATHE_FIELD(double, rope_high_freq_factor, 4.0,
              "llama3: those with more than this stay as they are", between(1e-3, 1e6).fixed())
  LATHE_FIELD(int64_t, rope_original_context, 8192,
              "llama3, yarn: tokens of the context that the model was trained with first",
              between(1, 100000000).fixed())
  LATHE_FIELD(double, rope_beta_fast, 32.0,
              "yarn: angles with more waves than this in rope_original_context stay as they are",
              between(1e-3, 1e6).fixed())
  LATHE_FIELD(double, rope_beta_slow, 1.0, "yarn: those with fewer than this are over rope_factor",
              between(1e-3, 1e6).fixed())
  LATHE_FIELD(double, rope_attention_factor, 0.0,
              "yarn: what queries and keys are multiplied by; 0: 0.1 ln(rope_factor) + 1",
              between(0, 1e6).fixed())
  LATHE_FIELD(bool, rope_truncate, true,
              "yarn: the angles between rope_beta_fast and rope_beta_slow are rounded outward to "
              "whole ones",
              anything().fixed())
  LATHE_FIELD(std::string, rope_layers, "1",
              "a digit per block, repeated over all blocks: 1 has rotary positions, 0 has none "
              "(SmolLM3: 1110)",
              anything().fixed())
  LATHE_FIELD(double, rope_local_theta, 0.0,
              "base of the angles in blocks with a window, where rope_scaling then has no effect "
              "(Gemma 3: 10000); 0: rope_theta and rope_scaling",
              between(0, 1e12).fixed())
  LATHE_FIELD(
      int64_t, sliding_window, 0,
      "tokens that a query attends to in blocks with a window: its own and those before it; "
      "0: the whole context",
      between(0, int64_t{1} << 40).fixed())
  LATHE_FIELD(std::string, window_layers, "1",
              "a digit per block, repeated over all blocks: 1 has sliding_window, 0 has none "
              "(Gemma 2: 10, Gemma 3: 111110)",
              anything().fixed())
  LATHE_FIELD(double, query_pre_attn_scalar, 0.0,
              "attention scores are divided by the square root of this; 0: the channels of a head",
              between(0, 1e6).fixed())
  LATHE_FIELD(double, attention_softcap, 0.0,
              "attention scores s become c tanh(s / c) with this c (Gemma 2: 50); 0: they stay",
              between(0, 1e6).fixed())
  LATHE_FIELD(double, logit_softcap, 0.0,
              "logits z become c tanh(z / c) with this c (Gemma 2: 30); 0: they stay",
              between(0, 1e6).fixed())
  LATHE_FIELD(
      std::string, norm_position, "pre",
      "where a block's norms are; pre: on the inputs of attention and the feed-forward "
      "part; post: on their outputs, before the residual is added (OLMo 2); both: on inputs "
      "and outputs (Gemma 2)",
      one_of({"pre", "post", "both"}).fixed())
  LATHE_FIELD(double, norm_eps, 1e-5, "added to the mean square in norms",
              between(1e-12, 1).fixed())
  LATHE_FIELD(bool, qkv_bias, false, "biases of the queries, keys and values (Qwen 2)",
              anything().fixed())
  LATHE_FIELD(bool, qk_norm, false, "RMS norms of each head's queries and keys (Qwen 3)",
              anything().fixed())
  LATHE_FIELD(std::string, qk_norm_over, "head",
              "qk_norm: what one norm spans; head: each head, with the same weights; projection: "
              "all heads together (OLMo 2)",
              one_of({"head", "projection"}).fixed())
  LATHE_FIELD(std::string, activation, "silu",
              "of the feed-forward part's gate; gelu: in its tanh form (Gemma)",
              one_of({"silu", "gelu"}).fixed())
  LATHE_FIELD(bool, scale_embeddings, false,
              "token embeddings are multiplied by the square root of n_embd (Gemma)",
              anything().fixed())
  LATHE_FIELD(bool, tie_weights, true, "the output head shares the token embedding's weight",
              anything().fixed())
  LATHE_FIELD(std::string, init, "gpt2", "how linear weights start", one_of(init_names()).fixed())

  int64_t kv_heads() const { return n_kv_head == 0 ? n_head : n_kv_head; }
  int64_t head_width() const { return head_dim == 0 ? n_embd / n_head : head_dim; }
  int64_t hidden() const { return n_inner == 0 ? (8 * n_embd / 3 + 31) / 32 * 32 : n_inner; }
  bool has_rope(int64_t block) const { return digit(rope_layers, block); }
  bool has_window(int64_t block) const { return sliding_window > 0 && digit(window_layers, block); }

 private:
  /// Returns whether a pattern of digits, repeated over all blocks, has a 1 for a block.
  static bool digit(const std::string& pattern, int64_t block) {
    return pattern[static_cast<size_t>(block) % pattern.size()] == '1';
  }
};

/// x + attention(norm(x)), then x + feed_forward(norm(x)); by LlamaConfig::norm_position the norms
/// are on the branches' outputs in place of their inputs, or on both.
struct LlamaBlock {
  std::optional<RMSNorm> norm1, post_norm1;  ///< of attention's input and output
  GroupedQueryAttention attn;
  std::optional<RMSNorm> norm2, post_norm2;  ///< of the feed-forward part's
  GatedFeedForward mlp;
  Dropout attn_drop, mlp_drop;

  /// `index` is the block's number, on which its window depends.
  LlamaBlock(const LlamaConfig& config, int64_t index);
  /// `rope_table` and `starts` are those of GroupedQueryAttention.
  Variable operator()(const Variable& x_BTC, const at::Tensor& rope_table,
                      const at::Tensor& starts = {}) const;
  void visit(Visit& v) {
    v("norm1", norm1);
    v("attn", attn);
    v("attn", attn_drop);
    v("post_norm1", post_norm1);
    v("norm2", norm2);
    v("mlp", mlp);
    v("mlp", mlp_drop);
    v("post_norm2", post_norm2);
  }
};

/// The model of kind "llama".
struct Llama {
  LlamaConfig config;  ///< vocab_size is set
  Rotary rotary;
  std::optional<Rotary> local_rotary;  ///< of blocks with a window, where it differs
  Embedding tokens;
  Dropout drop;
  std::vector<LlamaBlock> blocks;
  RMSNorm norm;
  Linear head;  ///< has no weight if weights are tied

  /// Creates it on the CPU in float32, with parameters of zero until initialize(); under MetaInit
  /// without storage.
  explicit Llama(const LlamaConfig& config);

  /// Maps ids int64 [B, T], T <= block_size, to logits [B, T, V].
  Variable operator()(const at::Tensor& ids_BT) const;
  /// Returns the input of the head: [B, T, C].
  Variable features(const at::Tensor& ids_BT) const;
  /// Returns the head's weight [V, C]; the token embeddings if they are tied.
  const Variable& head_weight() const { return config.tie_weights ? tokens.weight : head.weight; }
  /// Returns the cap of the logits, or 0.
  double logit_softcap() const { return config.logit_softcap; }
  /// Returns the training FLOPs of a token by the formula of GPT::flops_per_unit: 6 N + 12 L (H D)
  /// T, where a block with a window has its width in place of T.
  double flops_per_unit() const;
  /// Returns the first fault between its keys, if any.
  static std::optional<ConfigFault> check(const LlamaConfig& config);
  /// Returns the next smaller version: fewer blocks, a shorter context, a smaller vocabulary, then
  /// fewer heads of the same width; a single head is halved in width.
  static std::optional<LlamaConfig> scale_down(const LlamaConfig& config);
  static constexpr bool caches_keys = true, separates_documents = true;

  void visit(Visit& v) {
    v("tokens", tokens);
    v("embeddings", drop);
    v.blocks("blocks", blocks);
    v("norm", norm);
    if (!config.tie_weights) v("head", head);
  }
};

}  // namespace lathe
