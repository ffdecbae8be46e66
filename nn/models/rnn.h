// Declares a recurrent language model, which consists of a token embedding, LSTM or GRU layers, and
// an output head that may share the embedding's weight (Zaremba et al. 2014; Press and Wolf 2016).
// Shapes: B batch, T time, C embedding, H units, V vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/models/model.h"

namespace lathe {

struct RNNConfig {
  LATHE_FIELD(std::string, cell, "lstm", "Type of the recurrent cell.",
              one_of({"lstm", "gru"}).fixed())
  LATHE_FIELD(int64_t, n_layer, 2, "Number of recurrent layers.", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_hidden, 128, "Hidden units per layer.", between(1, 100000).fixed())
  LATHE_FIELD(int64_t, n_embd, 128, "Width of the token embedding, in channels.",
              between(1, 100000).fixed())
  LATHE_FIELD(int64_t, block_size, 64,
              "Length of a window, in tokens. The hidden state starts at zero in each window.",
              between(1, 1000000).fixed())
  LATHE_FIELD(int64_t, vocab_size, 0, "Size of the vocabulary. 0: the size that the data has.",
              between(0, 10000000).fixed())
  LATHE_FIELD(double, dropout, 0.0, "Dropout rate on embeddings and on each layer's outputs.",
              below(0, 1).fixed())
  LATHE_FIELD(bool, tie_weights, false,
              "Whether the output head shares its weight with the token embedding. Needs n_embd "
              "equal to n_hidden.",
              anything().fixed())
  LATHE_FIELD(std::string, init, "fan_in", "Initialization of linear and recurrent weights.",
              one_of(init_names()).fixed())
};

/// The model of kind "rnn".
struct RNN {
  RNNConfig config;  ///< the config, in which vocab_size is not 0
  Embedding tokens;
  Dropout embedded_drop;
  std::optional<LSTM> lstm;
  std::optional<GRU> gru;
  Dropout features_drop;
  Linear head;  ///< has no weight if weights are tied

  /// Creates the model. Parameters are zero until they are initialized.
  explicit RNN(const RNNConfig& config);
  /// Returns the first conflict between keys of the config, if any.
  static std::optional<ConfigFault> check(const RNNConfig& config);
  /// Returns the next smaller version: fewer layers, a shorter window, a smaller vocabulary, then
  /// narrower layers.
  static std::optional<RNNConfig> scale_down(const RNNConfig& config);

  /// Maps ids int64 [B, T] to logits [B, T, V].
  Variable operator()(const at::Tensor& ids_BT) const;
  /// Returns the input of the head: [B, T, H].
  Variable features(const at::Tensor& ids_BT) const;
  /// Returns the head's weight [V, H], which is the token embedding's weight if weights are tied.
  const Variable& head_weight() const { return config.tie_weights ? tokens.weight : head.weight; }
  /// Returns the training FLOPs of a token: 6 for each weight of a matrix product, in the forward
  /// and backward passes together (Kaplan et al. 2020).
  double flops_per_unit() const;
  void visit(Visit& v) {
    v("tokens", tokens);
    v("tokens", embedded_drop);
    v("layers", lstm);
    v("layers", gru);
    v("features", features_drop);
    if (!config.tie_weights) v("head", head);
  }
};

/// Returns the number of parameters that a model of this config has.
int64_t parameter_count(const RNNConfig& config);

}  // namespace lathe
