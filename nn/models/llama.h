// LLaMA (Touvron et al. 2023) and its relatives, which config keys select: Llama 3, Mistral, Qwen 2
// and 3, OLMo 2, SmolLM3, Gemma 2 and 3. These models have RMS norms, rotary positions, a gated
// feed-forward layer, and an output head that may share the token embedding's weight. They may have
// fewer heads of keys and values than of queries. Shapes: B batch, T time, C channels, D channels
// of a head, V vocabulary.
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
  LATHE_FIELD(int64_t, n_layer, 4, "Number of transformer blocks.", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_head, 4, "Number of query heads.", between(1, 1000).fixed())
  LATHE_FIELD(
      int64_t, n_kv_head, 0,
      "Number of key and value heads (grouped-query attention). Must divide n_head. 0: n_head.",
      between(0, 1000).fixed())
  LATHE_FIELD(int64_t, n_embd, 128, "Width of the residual stream, in channels.",
              between(1, 100000).fixed())
  LATHE_FIELD(int64_t, head_dim, 0, "Channels per head; must be even. 0: n_embd / n_head.",
              between(0, 100000).fixed())
  LATHE_FIELD(int64_t, n_inner, 0,
              "Hidden units of the feed-forward layer. 0: 8/3 n_embd rounded up to a multiple of "
              "32, which gives this layer about as many parameters as it has in the kind gpt.",
              between(0, 1000000).fixed())
  LATHE_FIELD(int64_t, block_size, 64, "Context length, in tokens.", between(1, 1000000).fixed())
  LATHE_FIELD(int64_t, vocab_size, 0, "Size of the vocabulary. 0: the size that the data has.",
              between(0, 10000000).fixed())
  LATHE_FIELD(
      double, dropout, 0.0,
      "Dropout rate on embeddings and residual branches. Attention probabilities are not dropped.",
      below(0, 1).fixed())
  LATHE_FIELD(double, rope_theta, 10000.0, "Base of the rotary position angles.",
              between(1, 1e12).fixed())
  LATHE_FIELD(std::string, rope_scaling, "none",
              "How rotary angles are scaled for longer contexts. linear divides all angles by "
              "rope_factor; llama3 and yarn divide only the low frequencies.",
              one_of({"none", "linear", "llama3", "yarn"}).fixed())
  LATHE_FIELD(double, rope_factor, 1.0, "Divisor of the angles that rope_scaling changes.",
              between(1, 1e6).fixed())
  LATHE_FIELD(double, rope_low_freq_factor, 1.0,
              "frequencies with fewer periods than this in rope_original_context are divided by "
              "rope_factor.",
              between(1e-3, 1e6).fixed().of({"llama3"}, "rope_scaling"))
  LATHE_FIELD(double, rope_high_freq_factor, 4.0,
              "frequencies with more periods than this in rope_original_context stay as they are.",
              between(1e-3, 1e6).fixed().of({"llama3"}, "rope_scaling"))
  LATHE_FIELD(int64_t, rope_original_context, 8192,
              "context length of the original training, in tokens.",
              between(1, 100000000).fixed().of({"llama3", "yarn"}, "rope_scaling"))
  LATHE_FIELD(double, rope_beta_fast, 32.0,
              "frequencies with more periods than this in rope_original_context stay as they are.",
              between(1e-3, 1e6).fixed().of({"yarn"}, "rope_scaling"))
  LATHE_FIELD(double, rope_beta_slow, 1.0,
              "frequencies with fewer periods than this are divided by rope_factor.",
              between(1e-3, 1e6).fixed().of({"yarn"}, "rope_scaling"))
  LATHE_FIELD(double, rope_attention_factor, 0.0,
              "factor on queries and keys. 0: 0.1 ln(rope_factor) + 1.",
              between(0, 1e6).fixed().of({"yarn"}, "rope_scaling"))
  LATHE_FIELD(bool, rope_truncate, true,
              "whether the range between rope_beta_fast and rope_beta_slow is rounded outward to "
              "whole pairs of channels.",
              anything().fixed().of({"yarn"}, "rope_scaling"))
  LATHE_FIELD(std::string, rope_layers, "1",
              "Pattern of one digit per block, repeated over all blocks: 1 uses rotary positions, "
              "0 uses none (SmolLM3: 1110).",
              anything().fixed())
  LATHE_FIELD(
      double, rope_local_theta, 0.0,
      "Base of the rotary angles in blocks with a sliding window, to which rope_scaling then does "
      "not apply (Gemma 3: 10000). 0: rope_theta and rope_scaling apply there too.",
      between(0, 1e12).fixed())
  LATHE_FIELD(int64_t, sliding_window, 0,
              "Number of tokens that a query attends to in blocks with a sliding window, itself "
              "included. 0: the whole context.",
              between(0, int64_t{1} << 40).fixed())
  LATHE_FIELD(std::string, window_layers, "1",
              "Pattern of one digit per block, repeated over all blocks: 1 uses sliding_window, 0 "
              "attends to the whole context (Gemma 2: 10, Gemma 3: 111110).",
              anything().fixed())
  LATHE_FIELD(double, query_pre_attn_scalar, 0.0,
              "Attention scores are divided by the square root of this number. 0: the number of "
              "channels per head.",
              between(0, 1e6).fixed())
  LATHE_FIELD(double, attention_softcap, 0.0,
              "Soft cap of attention scores: a score s becomes c tanh(s / c), where c is this "
              "number (Gemma 2: 50). 0: no cap.",
              between(0, 1e6).fixed())
  LATHE_FIELD(double, logit_softcap, 0.0,
              "Soft cap of the logits: a logit z becomes c tanh(z / c), where c is this number "
              "(Gemma 2: 30). 0: no cap.",
              between(0, 1e6).fixed())
  LATHE_FIELD(std::string, norm_position, "pre",
              "Position of the norms in a block. pre: on the inputs of attention and the "
              "feed-forward layer; post: on their outputs, before the residual connection (OLMo "
              "2); both: on inputs and outputs (Gemma 2).",
              one_of({"pre", "post", "both"}).fixed())
  LATHE_FIELD(double, norm_eps, 1e-5, "Epsilon of the RMS norms, added to the mean square.",
              between(1e-12, 1).fixed())
  LATHE_FIELD(bool, qkv_bias, false,
              "Whether the query, key and value projections have biases (Qwen 2).",
              anything().fixed())
  LATHE_FIELD(bool, qk_norm, false, "Whether queries and keys go through RMS norms (Qwen 3).",
              anything().fixed())
  LATHE_FIELD(std::string, qk_norm_over, "head",
              "qk_norm: what one norm spans. head: each head by itself, with shared weights; "
              "projection: all heads together (OLMo 2).",
              one_of({"head", "projection"}).fixed())
  LATHE_FIELD(
      std::string, activation, "silu",
      "Activation of the feed-forward layer's gate. gelu is the tanh approximation (Gemma).",
      one_of({"silu", "gelu"}).fixed())
  LATHE_FIELD(bool, scale_embeddings, false,
              "Whether token embeddings are multiplied by the square root of n_embd (Gemma).",
              anything().fixed())
  LATHE_FIELD(bool, tie_weights, true,
              "Whether the output head shares its weight with the token embedding.",
              anything().fixed())
  LATHE_FIELD(std::string, init, "gpt2", "Initialization of linear weights.",
              one_of(init_names()).fixed())

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

/// Computes x + attention(norm(x)), and then x + feed_forward(norm(x)). LlamaConfig::norm_position
/// may move the norms to the branches' outputs, or put norms on both.
struct LlamaBlock {
  std::optional<RMSNorm> norm1, post_norm1;  ///< norms of attention's input and output
  GroupedQueryAttention attn;
  std::optional<RMSNorm> norm2, post_norm2;  ///< norms of the feed-forward part's input and output
  GatedFeedForward mlp;
  Dropout attn_drop, mlp_drop;

  /// `index` is the block's number, on which its window depends.
  LlamaBlock(const LlamaConfig& config, int64_t index);
  /// `rope_table` and `starts` have the same meaning as for GroupedQueryAttention.
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
  LlamaConfig config;  ///< the config, in which vocab_size is not 0
  Rotary rotary;
  /// The rotation in blocks with a window; nullopt if rope_local_theta is 0.
  std::optional<Rotary> local_rotary;
  Embedding tokens;
  Dropout drop;
  std::vector<LlamaBlock> blocks;
  RMSNorm norm;
  Linear head;  ///< has no weight if weights are tied

  /// Creates the model on the CPU in float32. Parameters are zero until initialize(); under
  /// MetaInit they are on the meta device.
  explicit Llama(const LlamaConfig& config);

  /// Maps ids int64 [B, T], T <= block_size, to logits [B, T, V].
  Variable operator()(const at::Tensor& ids_BT) const;
  /// Returns the input of the head: [B, T, C].
  Variable features(const at::Tensor& ids_BT) const;
  /// Returns the head's weight [V, C], which is the token embedding's weight if weights are tied.
  const Variable& head_weight() const { return config.tie_weights ? tokens.weight : head.weight; }
  /// Returns the cap of the logits, or 0 if there is none.
  double logit_softcap() const { return config.logit_softcap; }
  /// Returns the training FLOPs of a token by the formula of GPT::flops_per_unit: 6 N + 12 L (H D)
  /// T, where L is n_layer, H is n_head, and T is block_size. For a block with a window,
  /// min(sliding_window, T) replaces T.
  double flops_per_unit() const;
  /// Returns the first conflict between keys of the config, if any.
  static std::optional<ConfigFault> check(const LlamaConfig& config);
  /// Returns the next smaller version: fewer blocks, a shorter context, a smaller vocabulary, then
  /// fewer heads of the same width; a single head is halved in width.
  static std::optional<LlamaConfig> scale_down(const LlamaConfig& config);
  /// Returns how tensor ranks cut the model's layers.
  static std::vector<LayerCut> layer_cuts(const LlamaConfig& config);
  static constexpr bool caches_keys = true, separates_documents = true, divides_positions = true;

  void visit(Visit& v) {
    v("tokens", tokens);
    v("embeddings", drop);
    v.blocks("blocks", blocks);
    v("norm", norm);
    if (!config.tie_weights) v("head", head);
  }
};

}  // namespace lathe
