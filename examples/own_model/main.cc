// A custom model in Lathe's trainer. This program has every command of `lathe`, and one more kind
// of model.
#include "lathe/nn/layers.h"
#include "lathe/nn/models/model.h"
#include "lathe/train/commands/cli.h"

using namespace lathe;

struct MaxoutConfig {
  LATHE_FIELD(int64_t, n_hidden, 64, "units of the hidden layer", between(1, 100000).fixed())
  LATHE_FIELD(int64_t, n_piece, 3, "linear pieces of a unit", between(2, 100).fixed())
  LATHE_FIELD(double, dropout, 0.0, "share of hidden units zeroed in training", below(0, 1).fixed())
};

/// A network in which each hidden unit is the maximum of several linear functions. Goodfellow et
/// al. 2013, "Maxout networks".
struct Maxout {
  std::vector<Linear> pieces;
  Dropout drop;
  Linear head;

  Maxout(const MaxoutConfig& config, const ModelSizes& sizes) : drop(config.dropout) {
    int64_t features = 1;
    for (const int64_t size : sizes.input) features *= size;
    for (int64_t i = 0; i < config.n_piece; ++i)
      pieces.emplace_back(features, config.n_hidden, /*with_bias=*/true);
    head = Linear(config.n_hidden, sizes.outputs, /*with_bias=*/true);
  }
  Variable operator()(const Variable& x) const {
    const Variable x_BF = reshape(x, {x.size(0), -1});
    Variable h_BH = pieces[0](x_BF);
    for (size_t i = 1; i < pieces.size(); ++i)
      h_BH = h_BH + relu(pieces[i](x_BF) - h_BH);  // max(h, p)
    return head(drop(h_BH));
  }
  void visit(Visit& v) {
    v("pieces", pieces);
    v("dropout", drop);
    v("head", head);
  }
};

int main(int argc, char** argv) {
  add_model_kind(
      model_kind<Maxout, MaxoutConfig>("maxout", "units that are the largest of linear pieces"));
  return run_cli(argc, argv);
}
