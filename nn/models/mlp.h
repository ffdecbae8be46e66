// Defines a multi-layer perceptron. Shapes: B batch.
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

struct MLPConfig {
  LATHE_FIELD(int64_t, n_layer, 2, "Number of hidden layers. 0: a linear model.",
              between(0, 1000).fixed())
  LATHE_FIELD(int64_t, n_hidden, 128, "Number of units of each hidden layer.",
              between(1, 1000000).fixed())
  LATHE_FIELD(std::string, activation, "relu", "Activation after each hidden layer.",
              one_of({"relu", "gelu", "silu", "tanh"}).fixed())
  LATHE_FIELD(std::string, norm, "none",
              "Norm before each activation: layer norm, batch norm or none.",
              one_of({"none", "layer", "batch"}).fixed())
  LATHE_FIELD(double, dropout, 0.0, "Dropout rate on hidden units.", below(0, 1).fixed())
  LATHE_FIELD(std::string, init, "kaiming", "Initialization of linear weights.",
              one_of(init_names()).fixed())
};

/// A hidden layer: a linear layer, norm, activation and dropout, in this order. x [B, in] ->
/// [B, n_hidden].
struct MLPLayer {
  Linear linear;
  std::optional<LayerNorm> layer_norm;
  std::optional<BatchNorm1d> batch_norm;
  Variable (*activation)(const Variable&) = nullptr;
  Dropout drop;

  MLPLayer(const MLPConfig& config, int64_t in);
  Variable operator()(const Variable& x) const;
  void visit(Visit& v) {
    v("linear", linear);
    v("norm", layer_norm);
    v("norm", batch_norm);
    v("dropout", drop);
  }
};

/// The model of kind "mlp".
struct MLP {
  MLPConfig config;
  int64_t features;  ///< number of elements of one sample
  std::vector<MLPLayer> layers;
  Linear head;

  /// Creates a model for samples of shape `sizes.input`, which it flattens. Throws if a sample has
  /// no elements or there are no outputs. Parameters are zero until they are initialized.
  MLP(const MLPConfig& config, const ModelSizes& sizes);
  /// Returns the next smaller version: fewer layers (down to 2), then narrower layers (down to 64
  /// units); nullopt if there is none.
  static std::optional<MLPConfig> scale_down(const MLPConfig& config);
  /// Maps x [B, ...] to [B, outputs].
  Variable operator()(const Variable& x) const;
  /// Returns the training FLOPs of a sample: 6 for each weight of a matrix product, forward and
  /// backward.
  double flops_per_unit() const;
  void visit(Visit& v) {
    v.blocks("layers", layers);
    v("head", head);
  }
};

/// Returns the number of parameters that a model of this config and these sizes has.
int64_t parameter_count(const MLPConfig& config, const ModelSizes& sizes);

}  // namespace lathe
