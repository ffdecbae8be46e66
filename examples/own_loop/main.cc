// Fits a sine with Variables, a module, an optimizer, and a hand-written loop.
#include <lathe/autograd/create.h>
#include <lathe/nn/init.h>
#include <lathe/nn/layers.h>
#include <lathe/optim/optimizer.h>

#include <iostream>

using namespace lathe;

struct Net {
  Linear in{1, 64, /*with_bias=*/true}, out{64, 1, /*with_bias=*/true};
  Dropout drop{0.01};
  Variable operator()(const Variable& x) const { return out(drop(tanh(in(x)))); }
  void visit(Visit& v) {
    v("in", in);
    v("drop", drop);
    v("out", out);
  }
};

int main() {
  Net net;
  initialize(net, Init::xavier_normal, /*seed=*/1);
  Optimizer optimizer({.kind = "adam", .weight_decay = 0}, parameters(net));
  const Variable x = reshape(linspace(-3, 3, 256), {-1, 1}), y(x.data().sin());
  for (uint64_t step = 0; step < 600; ++step) {
    const TrainingStep training({.seed = 1, .step = step});
    zero_grad(net);
    mse_loss(net(x), y).backward();
    optimizer.step(step < 500 ? 1e-2 : 1e-3);
  }
  const NoGrad no_grad;
  const double error = mse_loss(net(x), y).item();
  std::cout << "sin(1) is about " << net(tensor({{1}})) << "\nmean squared error " << error << "\n";
  return error < 1e-2 ? 0 : 1;
}
