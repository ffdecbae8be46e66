// Declares GPT-2 (Radford et al. 2019), which has learned positions, pre-layer-norm blocks, GELU,
// and an output head that may share the token embedding's weight. Shapes: B batch, T time, C
// channels, V vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/models/model.h"

namespace lathe {

struct GPTConfig {
  LATHE_FIELD(int64_t, n_layer, 4, "Number of transformer blocks.", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_head, 4, "Number of attention heads. Must divide n_embd.",
              between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_embd, 128, "Width of the residual stream, in channels.",
              between(1, 100000).fixed())
  LATHE_FIELD(int64_t, block_size, 64, "Context length, in tokens.", between(1, 1000000).fixed())
  LATHE_FIELD(int64_t, vocab_size, 0, "Size of the vocabulary. 0: the size that the data has.",
              between(0, 10000000).fixed())
  LATHE_FIELD(
      double, dropout, 0.0,
      "Dropout rate on embeddings and residual branches. Attention probabilities are not dropped.",
      below(0, 1).fixed())
  LATHE_FIELD(bool, bias, true, "Whether linear layers and layer norms have biases.",
              anything().fixed())
  LATHE_FIELD(bool, tie_weights, true,
              "Whether the output head shares its weight with the token embedding.",
              anything().fixed())
  LATHE_FIELD(std::string, init, "gpt2", "Initialization of linear weights.",
              one_of(init_names()).fixed())
};

/// Computes x + attention(norm(x)), and then x + feed_forward(norm(x)).
struct Block {
  LayerNorm norm1;
  CausalSelfAttention attn;
  LayerNorm norm2;
  FeedForward mlp;
  Dropout attn_drop, mlp_drop;

  explicit Block(const GPTConfig& config);
  /// `starts` has the same meaning as for CausalSelfAttention.
  Variable operator()(const Variable& x_BTC, const at::Tensor& starts = {}) const;
  void visit(Visit& v) {
    v("norm1", norm1);
    v("attn", attn);
    v("attn", attn_drop);
    v("norm2", norm2);
    v("mlp", mlp);
    v("mlp", mlp_drop);
  }
};

/// The model of kind "gpt".
struct GPT {
  GPTConfig config;  ///< the config, in which vocab_size is not 0
  Embedding tokens, positions;
  Dropout drop;
  std::vector<Block> blocks;
  LayerNorm norm;
  Linear head;  ///< has no weight if weights are tied

  /// Creates the model on the CPU in float32. Parameters are zero until initialize(); under
  /// MetaInit they are on the meta device.
  explicit GPT(const GPTConfig& config);

  /// Maps ids int64 [B, T], T <= block_size, to logits [B, T, V].
  Variable operator()(const at::Tensor& ids_BT) const;
  /// Returns the input of the head: [B, T, C].
  Variable features(const at::Tensor& ids_BT) const;
  /// Returns the head's weight [V, C], which is the token embedding's weight if weights are tied.
  const Variable& head_weight() const { return config.tie_weights ? tokens.weight : head.weight; }
  /// Returns the training FLOPs of a token by the usual formula 6 N + 12 L C T, with 4 instead of 6
  /// for frozen parameters (Kaplan et al. 2020; Chowdhery et al. 2022). N is the number of
  /// parameters without position embeddings and without an untied token embedding.
  double flops_per_unit() const;
  /// Returns the first conflict between keys of the config, if any.
  static std::optional<ConfigFault> check(const GPTConfig& config);
  /// Returns the next smaller version: fewer blocks, a shorter context, a smaller vocabulary, then
  /// fewer heads of the same width; a single head is halved in width.
  static std::optional<GPTConfig> scale_down(const GPTConfig& config);
  /// Returns how tensor ranks cut the model's layers.
  static std::vector<LayerCut> layer_cuts(const GPTConfig& config);
  static constexpr bool caches_keys = true, separates_documents = true, divides_positions = true;

  void visit(Visit& v) {
    v("tokens", tokens);
    v("positions", positions);
    v("embeddings", drop);
    v.blocks("blocks", blocks);
    v("norm", norm);
    if (!config.tie_weights) v("head", head);
  }
};

}  // namespace lathe
