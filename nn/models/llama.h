// LLaMA and its relatives (Touvron et al. 2023; Llama 3, Mistral, Qwen 2 and 3 by their keys): RMS
// norm, rotary positions, fewer heads of keys and values than of queries, SwiGLU, an output head
// that may share the token embedding's weight. Shapes: B batch, T time, C channels, D channels of a
// head, V vocabulary.
#pragma once

#include <cstdint>
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
  LATHE_FIELD(double, norm_eps, 1e-5, "added to the mean square in norms",
              between(1e-12, 1).fixed())
  LATHE_FIELD(bool, qkv_bias, false, "biases of the queries, keys and values (Qwen 2)",
              anything().fixed())
  LATHE_FIELD(bool, qk_norm, false, "RMS norms of each head's queries and keys (Qwen 3)",
              anything().fixed())
  LATHE_FIELD(bool, tie_weights, true, "the output head shares the token embedding's weight",
              anything().fixed())
  LATHE_FIELD(std::string, init, "gpt2", "how linear weights start", one_of(init_names()).fixed())

  int64_t kv_heads() const { return n_kv_head == 0 ? n_head : n_kv_head; }
  int64_t head_width() const { return head_dim == 0 ? n_embd / n_head : head_dim; }
  int64_t hidden() const { return n_inner == 0 ? (8 * n_embd / 3 + 31) / 32 * 32 : n_inner; }
};

/// x + attention(norm(x)), then x + feed_forward(norm(x)).
struct LlamaBlock {
  RMSNorm norm1;
  GroupedQueryAttention attn;
  RMSNorm norm2;
  GatedFeedForward mlp;
  Dropout attn_drop, mlp_drop;

  explicit LlamaBlock(const LlamaConfig& config);
  /// `rope_table` and `starts` are those of GroupedQueryAttention.
  Variable operator()(const Variable& x_BTC, const at::Tensor& rope_table,
                      const at::Tensor& starts = {}) const;
  void visit(Visit& v) {
    v("norm1", norm1);
    v("attn", attn);
    v("attn", attn_drop);
    v("norm2", norm2);
    v("mlp", mlp);
    v("mlp", mlp_drop);
  }
};

/// The model of kind "llama".
struct Llama {
  LlamaConfig config;  ///< vocab_size is set
  Rotary rotary;
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
  /// Returns the training FLOPs of a token by the formula of GPT::flops_per_unit: 6 N + 12 L (H D)
  /// T.
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
