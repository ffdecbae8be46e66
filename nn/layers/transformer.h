// Defines transformer blocks. Shapes: B batch, T positions, S positions of the memory, C channels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/layers/attention.h"
#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "nn/module.h"

namespace lathe {

/// The transformer's feed-forward block: C -> 4C, GELU, 4C -> C; `residual` is added.
struct FeedForward {
  Linear up, down;

  FeedForward() = default;
  FeedForward(int64_t channels, bool bias);
  Variable operator()(const Variable& x, const Variable& residual = {}) const;
  void visit(Visit& v) {
    v("up", up);
    v("down", down);
  }
};

/// Computes down(silu(a) * b), where [a b] = up(x). Shazeer 2020, "GLU variants improve
/// transformer". x [..., C] -> [..., C].
struct SwiGLU {
  Linear up, down;  ///< C -> 2 * hidden, hidden -> C

  SwiGLU() = default;
  SwiGLU(int64_t channels, int64_t hidden, bool bias = false);
  Variable operator()(const Variable& x) const;
  void visit(Visit& v) {
    v("up", up);
    v("down", down);
  }
};

/// Computes down(silu(gate(x)) * up(x)): SwiGLU with two separate matrices, or GeGLU with the tanh
/// form of gelu (Shazeer 2020). `residual` is added.
struct GatedFeedForward {
  Linear gate, up, down;  ///< C -> hidden twice, hidden -> C; no biases
  std::string activation = "silu";

  GatedFeedForward() = default;
  /// `activation`: "silu" or "gelu".
  GatedFeedForward(int64_t channels, int64_t hidden, const std::string& activation = "silu");
  Variable operator()(const Variable& x, const Variable& residual = {}) const;
  void visit(Visit& v) {
    v("gate", gate);
    v("up", up);
    v("down", down);
  }
};

/// Options of encoder and decoder layers. They have the meaning of
/// torch.nn.TransformerEncoderLayer's options, and the names of the keys of [model].
struct TransformerOptions {
  int64_t n_embd = 0, n_head = 1;  ///< C; n_head must divide it
  int64_t n_inner = 0;             ///< hidden units of the feed-forward part; 0: 4 C
  double dropout =
      0;  ///< rate on branches, inside the feed-forward part and on attention's probabilities
  std::string activation =
      "relu";  ///< "relu", "gelu" (exact), or "swiglu", where linear1 has 2 * n_inner outputs
  bool norm_first = false;  ///< x + f(norm(x)) instead of norm(x + f(x))
  bool bias = true;
};

/// Computes linear2(dropout(activation(linear1(x)))). The encoder and decoder layers share this
/// part.
struct TransformerFeedForward {
  Linear linear1, linear2;
  Dropout drop;
  std::string activation;

  TransformerFeedForward() = default;
  explicit TransformerFeedForward(const TransformerOptions& options);
  Variable operator()(const Variable& x) const;
  void visit(Visit& v) {
    v("linear1", linear1);
    v("linear2", linear2);
    v("dropout", drop);
  }
};

/// Self-attention and a feed-forward part, each added to the residual stream (Vaswani et al. 2017).
/// Corresponds to torch.nn.TransformerEncoderLayer with batch_first=True. x [B, T, C] -> [B, T, C].
struct TransformerEncoderLayer {
  MultiHeadAttention self_attn;
  TransformerFeedForward feed_forward;
  LayerNorm norm1, norm2;
  Dropout drop1, drop2;
  bool norm_first = false;

  TransformerEncoderLayer() = default;
  explicit TransformerEncoderLayer(const TransformerOptions& options);
  Variable operator()(const Variable& x_BTC, const AttentionMask& mask = {}) const;
  void visit(Visit& v);
};

/// An encoder layer with attention to a memory [B, S, C] between self-attention and the
/// feed-forward part.
struct TransformerDecoderLayer {
  MultiHeadAttention self_attn, multihead_attn;
  TransformerFeedForward feed_forward;
  LayerNorm norm1, norm2, norm3;
  Dropout drop1, drop2, drop3;
  bool norm_first = false;

  TransformerDecoderLayer() = default;
  explicit TransformerDecoderLayer(const TransformerOptions& options);
  /// `mask` is for self-attention, usually causal; `memory_mask` is for the memory.
  Variable operator()(const Variable& x_BTC, const Variable& memory_BSC,
                      const AttentionMask& mask = {.causal = true},
                      const AttentionMask& memory_mask = {}) const;
  void visit(Visit& v);
};

/// Encoder layers one after another, followed by a norm if norm_first is true. The layers are the
/// repeated blocks to which memory.recompute and fp8 apply.
struct TransformerEncoder {
  std::vector<TransformerEncoderLayer> layers;
  std::optional<LayerNorm> norm;

  TransformerEncoder() = default;
  TransformerEncoder(int64_t n_layer, const TransformerOptions& options);
  Variable operator()(const Variable& x_BTC, const AttentionMask& mask = {}) const;
  void visit(Visit& v) {
    v.blocks("layers", layers);
    v("norm", norm);
  }
};
/// `n_layer` decoder layers, followed by a norm if norm_first is true. Compare
/// torch.nn.TransformerDecoder.
struct TransformerDecoder {
  std::vector<TransformerDecoderLayer> layers;
  std::optional<LayerNorm> norm;

  TransformerDecoder() = default;
  TransformerDecoder(int64_t n_layer, const TransformerOptions& options);
  Variable operator()(const Variable& x_BTC, const Variable& memory_BSC,
                      const AttentionMask& mask = {.causal = true},
                      const AttentionMask& memory_mask = {}) const;
  void visit(Visit& v) {
    v.blocks("layers", layers);
    v("norm", norm);
  }
};

}  // namespace lathe
