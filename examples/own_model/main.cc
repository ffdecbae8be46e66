// Adds a custom model kind to Lathe's trainer. This program has every command of `lathe`.
#include "lathe/autograd/recompute.h"
#include "lathe/nn/layers.h"
#include "lathe/nn/models/model.h"
#include "lathe/train/commands/cli.h"

using namespace lathe;

struct MaxoutConfig {
  LATHE_FIELD(int64_t, n_layer, 2, "Number of hidden layers.", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_hidden, 64, "Units per hidden layer.", between(1, 100000).fixed())
  LATHE_FIELD(int64_t, n_piece, 3, "Number of linear pieces per unit.", between(2, 100).fixed())
  LATHE_FIELD(double, dropout, 0.0, "Dropout rate on hidden units.", below(0, 1).fixed())
};

/// A layer in which each unit is the maximum of several linear functions. Goodfellow et al. 2013,
/// "Maxout networks".
struct MaxoutLayer {
  std::vector<Linear> pieces;
  Dropout drop;

  MaxoutLayer(const MaxoutConfig& config, int64_t features) : drop(config.dropout) {
    for (int64_t i = 0; i < config.n_piece; ++i)
      pieces.emplace_back(features, config.n_hidden, /*with_bias=*/true);
  }
  Variable operator()(const Variable& x_BF) const {
    Variable h_BH = pieces[0](x_BF);
    for (size_t i = 1; i < pieces.size(); ++i)
      h_BH = h_BH + relu(pieces[i](x_BF) - h_BH);  // the maximum of h and piece i
    return drop(h_BH);
  }
  void visit(Visit& v) {
    v("pieces", pieces);
    v("dropout", drop);
  }
};

struct Maxout {
  std::vector<MaxoutLayer> layers;
  Linear head;

  Maxout(const MaxoutConfig& config, const ModelSizes& sizes) {
    int64_t features = 1;
    for (const int64_t size : sizes.input) features *= size;
    for (int64_t i = 0; i < config.n_layer; ++i)
      layers.emplace_back(config, i == 0 ? features : config.n_hidden);
    head = Linear(config.n_hidden, sizes.outputs, /*with_bias=*/true);
  }
  /// Maps x [B, ...] to [B, outputs]. Blocks that run_blocks() runs can be recomputed
  /// (memory.recompute) and sharded among processes (dist.shard).
  Variable operator()(const Variable& x) const {
    return head(run_blocks(layers, reshape(x, {x.size(0), -1})));
  }
  void visit(Visit& v) {
    v.blocks("layers", layers);
    v("head", head);
  }
};

int main(int argc, char** argv) {
  add_model_kind(model_kind<Maxout, MaxoutConfig>(
      "maxout", "a perceptron whose units are maxima of linear functions"));
  return run_cli(argc, argv);
}
