// Classifies sequences of symbols with a transformer: the class is the most frequent symbol.
// Sequences have different lengths and are padded.
#include <ATen/Parallel.h>
#include <lathe/autograd/create.h>
#include <lathe/nn/init.h>
#include <lathe/nn/layers.h>
#include <lathe/nn/state.h>
#include <lathe/optim/optimizer.h>

#include <iostream>

using namespace lathe;

constexpr int64_t n_symbol = 4, padding_id = 4, longest = 12, width = 32;

struct Examples {
  at::Tensor ids, classes;  // int64 [N, T] and [N]
};

Examples make_examples(int64_t n, uint64_t seed) {
  const auto random = [&](at::IntArrayRef sizes, uint64_t stream, int64_t below) {
    return (randn(sizes, 10 * seed + stream).data().abs() * 1000).to(at::kLong).remainder(below);
  };
  at::Tensor ids = random({n, longest}, 0, n_symbol);
  const at::Tensor lengths = random({n, 1}, 1, longest - 2) + 3;
  ids.masked_fill_(arange(longest, at::kLong).data() >= lengths, padding_id);
  const at::Tensor counts = one_hot(ids, n_symbol + 1).data().sum(1).narrow(1, 0, n_symbol);
  return {ids, counts.argmax(1)};
}

struct Classifier {
  Embedding symbols{n_symbol + 1, width}, places{longest, width};
  TransformerEncoder encoder{2, {.n_embd = width, .n_head = 4, .dropout = 0.1, .norm_first = true}};
  Linear head{width, n_symbol, /*with_bias=*/true};

  // ids [B, T] -> logits [B, n_symbol]
  Variable operator()(const at::Tensor& ids) const {
    const at::Tensor padding = ids == padding_id;
    const Variable x = symbols(ids) + places(arange(longest, at::kLong).data());
    const Variable y = masked_fill(encoder(x, {.padding = padding}), padding.unsqueeze(-1), 0);
    return head(sum(y, {1}) / padding.logical_not().sum(1, /*keepdim=*/true));
  }
  void visit(Visit& v) {
    v("symbols", symbols);
    v("places", places);
    v("encoder", encoder);
    v("head", head);
  }
};

double loss_of(const Classifier& net, const Examples& examples) {
  const NoGrad no_grad;
  return cross_entropy(net(examples.ids), examples.classes).item();
}

int main() {
  at::set_num_threads(1);  // faster for matrices of this size
  const Examples train = make_examples(2048, 1), val = make_examples(512, 2);
  Classifier net;
  initialize(net, Init::xavier_normal, /*seed=*/1);
  Optimizer optimizer({.kind = "adamw", .weight_decay = 0.01}, parameters(net));

  double best = loss_of(net, val);
  for (uint64_t epoch = 0, step = 0; epoch < 5; ++epoch) {
    for (const at::Tensor& batch : randn({2048}, epoch).data().argsort().split(64)) {
      const TrainingStep training({.seed = 1, .step = step++});
      zero_grad(net);
      const Variable logits = net(train.ids.index_select(0, batch));
      cross_entropy(logits, train.classes.index_select(0, batch)).backward();
      optimizer.step(3e-3);
    }

    const double loss = loss_of(net, val);
    std::cout << "epoch " << epoch << ": validation loss " << loss << "\n";
    if (loss >= best) continue;
    best = loss;
    save_state_dict(state_dict(net), "classifier.safetensors");
  }

  // The saved weights, loaded into another model, give the same loss.
  Classifier loaded;
  load_state_dict(loaded, read_state_dict("classifier.safetensors"));
  return best < 0.35 && loss_of(loaded, val) == best ? 0 : 1;  // guessing has a loss of ln 4 = 1.39
}
