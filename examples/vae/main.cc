// Trains a variational autoencoder (Kingma and Welling 2014) on images of 8 x 8 pixels, each with
// one bright row or column, then prints a new image.
#include <ATen/Parallel.h>
#include <lathe/autograd/create.h>
#include <lathe/nn/init.h>
#include <lathe/nn/layers.h>
#include <lathe/optim/optimizer.h>

#include <iostream>

using namespace lathe;

constexpr int64_t side = 8, pixels = side * side, n_code = 4;

at::Tensor make_images(int64_t n, uint64_t seed) {
  const at::Tensor random = (randn({n}, seed).data().abs() * 1000).to(at::kLong);
  const at::Tensor line = one_hot(random.remainder(side), side).data().view({n, side, 1});
  const at::Tensor rows = line.expand({n, side, side}), columns = rows.transpose(1, 2);
  const at::Tensor is_row = (randn({n, 1, 1}, seed + 1).data() > 0).to(at::kFloat);
  return (rows * is_row + columns * (1 - is_row)).reshape({n, pixels});
}

struct Autoencoder {
  Sequential encoder = mlp({pixels, 128, 2 * n_code}), decoder = mlp({n_code, 128, pixels});

  // Returns the mean and the log of the variance of each image's code, both [B, n_code].
  std::pair<Variable, Variable> encode(const Variable& x) const {
    const auto parts = chunk(encoder(x), 2, -1);
    return {parts[0], parts[1]};
  }
  void visit(Visit& v) {
    v("encoder", encoder);
    v("decoder", decoder);
  }
};

// Returns the negative evidence lower bound in nats, averaged over the images x [B, pixels].
Variable loss_of(const Autoencoder& net, const at::Tensor& x, uint64_t seed) {
  const auto [mean, log_var] = net.encode(x);
  const Variable code = mean + exp(0.5 * log_var) * randn(mean.sizes(), seed);
  const Variable pixel_loss =
      binary_cross_entropy_with_logits(net.decoder(code), x, {}, Reduction::sum);
  const Variable divergence = -0.5 * sum(1.0 + log_var - mean * mean - exp(log_var));
  return (pixel_loss + divergence) / static_cast<double>(x.size(0));
}

int main() {
  at::set_num_threads(1);  // faster for matrices of this size
  const at::Tensor train = make_images(1024, 1), val = make_images(256, 3);
  Autoencoder net;
  initialize(net, Init::kaiming, /*seed=*/1);
  Optimizer optimizer({.kind = "adam", .weight_decay = 0}, parameters(net));
  uint64_t step = 0;
  for (uint64_t epoch = 0; epoch < 40; ++epoch) {
    for (const at::Tensor& batch : randn({1024}, epoch).data().argsort().split(64)) {
      const TrainingStep training({.seed = 1, .step = step});
      zero_grad(net);
      loss_of(net, train.index_select(0, batch), /*seed=*/1000 + step++).backward();
      optimizer.step(epoch < 30 ? 3e-3 : 5e-4);
    }
  }

  const NoGrad no_grad;
  const double loss = loss_of(net, val, /*seed=*/7).item();
  const Variable drawn = sigmoid(net.decoder(randn({2, n_code}, /*seed=*/8)));
  std::cout << "loss " << loss << " nats; a drawn image:\n";
  for (int64_t i = 0; i < pixels; ++i)
    std::cout << (drawn.data()[0][i].item<double>() > 0.5 ? "#" : ".")
              << ((i + 1) % side == 0 ? "\n" : "");
  // The 16 possible images have an entropy of 2.8 nats, which is the lowest possible expected loss.
  // A model of independent pixels would have a loss of 24.
  return loss < 8 ? 0 : 1;
}
