// The models mlp, convnet and rnn against the same functions built from ATen; their formulas against what is counted.
#include <algorithm>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "core/mode.h"
#include "nn/init.h"
#include "nn/models/convnet.h"
#include "nn/models/mlp.h"
#include "nn/models/rnn.h"
#include "optim/optimizer.h"
#include "tests/catch.h"

namespace {

using namespace lathe;
using Leaves = std::map<std::string, at::Tensor>;

/// In float64 with values that every term counts for, and copies of them for LibTorch's autograd.
Leaves randomise(const ModuleRef& model) {
  move_to(model, at::kCPU, at::kDouble);
  Leaves out;
  for (const auto& p : parameters(model)) {
    p.parameter.data().copy_(torch::randn(p.parameter.sizes(), at::kDouble) * 0.3);
    out[p.path] = p.parameter.data().clone().requires_grad_();
  }
  return out;
}
void check_near(const std::string& what, const at::Tensor& a, const at::Tensor& b) {
  INFO(what);
  REQUIRE(a.defined());
  REQUIRE(b.defined());
  CHECK((a - b).abs().max().item<double>() <= 1e-9 * std::max(1.0, b.abs().max().item<double>()));
}
void check_against(const ModuleRef& model, const Leaves& w, const Variable& y, const at::Tensor& wanted) {
  check_near("output", y.data(), wanted.detach());
  const at::Tensor dy = torch::randn_like(wanted);
  backward(y, dy);
  wanted.backward(dy);
  for (const auto& p : parameters(model)) check_near(p.path, p.parameter.grad(), w.at(p.path).grad());
}

TEST_CASE("the convnet is its functions in LibTorch", "[models]") {
  ConvNetConfig c;
  c.n_stage = 2, c.n_block = 2, c.n_channel = 3;
  ConvNet net(c, {{2, 5, 6}, 4});
  auto w = randomise(net);
  const at::Tensor in = torch::randn({3, 2, 5, 6}, at::kDouble);
  const auto conv = [&](const at::Tensor& x, const std::string& path, int64_t stride, int64_t padding) {
    return torch::conv2d(x, w.at(path + ".weight"), {}, stride, padding);
  };
  const auto norm = [&](const at::Tensor& x, const std::string& path) {
    return torch::batch_norm(x, w.at(path + ".weight"), w.at(path + ".bias"), {}, {}, true, 0.1, 1e-5, false);
  };
  at::Tensor x = torch::relu(norm(conv(in, "stem", 1, 1), "stem_norm"));
  for (int b = 0; b < 4; ++b) {
    const std::string p = "blocks." + std::to_string(b);
    const int64_t stride = b == 2 ? 2 : 1;
    const at::Tensor h = torch::relu(norm(conv(x, p + ".conv1", stride, 1), p + ".norm1"));
    const at::Tensor branch = norm(conv(h, p + ".conv2", 1, 1), p + ".norm2");
    x = torch::relu(branch + (b == 2 ? norm(conv(x, p + ".shortcut.conv", 2, 0), p + ".shortcut.norm") : x));
  }
  const at::Tensor wanted = torch::linear(x.mean(at::IntArrayRef{2, 3}), w.at("head.weight"), w.at("head.bias"));
  const Training training;
  check_against(net, w, net(Variable(in)), wanted);
}

TEST_CASE("the rnn is its functions in LibTorch, tied and untied", "[models]") {
  for (const bool tie : {true, false}) {
    for (const std::string cell : {"lstm", "gru"}) {
      RNNConfig c;
      c.cell = cell, c.n_layer = 2, c.n_hidden = 5, c.n_embd = tie ? 5 : 4, c.vocab_size = 7, c.tie_weights = tie;
      RNN rnn(c);
      auto w = randomise(rnn);
      const at::Tensor ids = torch::randint(7, {3, 6}), targets = torch::randint(7, {3, 6});
      std::vector<at::Tensor> flat;
      for (const std::string l : {"0", "1"}) {
        for (const char* name : {"weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l"})
          flat.push_back(w.at("layers." + (name + l)));
      }
      const at::Tensor x = torch::embedding(w.at("tokens.weight"), ids), zero = torch::zeros({2, 3, 5}, at::kDouble);
      const at::Tensor y = cell == "lstm"
                               ? std::get<0>(torch::lstm(x, {zero, zero}, flat, true, 2, 0.0, false, false, true))
                               : std::get<0>(torch::gru(x, zero, flat, true, 2, 0.0, false, false, true));
      const at::Tensor logits = torch::linear(y, w.at(tie ? "tokens.weight" : "head.weight"));
      check_near("logits", rnn(ids).data(), logits.detach());
      check_against(rnn, w, head_loss(rnn, ids, targets),
                    torch::cross_entropy_loss(logits.view({-1, 7}), targets.reshape({-1})));
    }
  }
}

TEST_CASE("the mlp is its functions in LibTorch, with each activation and norm", "[models]") {
  for (const std::string activation : {"relu", "gelu", "silu", "tanh"}) {
    for (const std::string norm : {"none", "layer", "batch"}) {
      MLPConfig c;
      c.n_layer = 2, c.n_hidden = 5, c.activation = activation, c.norm = norm;
      MLP model(c, {{2, 3}, 4});
      auto w = randomise(model);
      const at::Tensor in = torch::randn({6, 2, 3}, at::kDouble);
      const auto lin = [&](const at::Tensor& x, const std::string& path) {
        return torch::linear(x, w.at(path + ".weight"), w.at(path + ".bias"));
      };
      at::Tensor x = in.view({6, 6});
      for (const std::string p : {"layers.0", "layers.1"}) {
        x = lin(x, p + ".linear");
        const auto of = [&](const char* name) { return w.at(p + ".norm." + name); };
        if (norm == "layer") x = torch::layer_norm(x, {5}, of("weight"), of("bias"), 1e-5);
        if (norm == "batch") x = torch::batch_norm(x, of("weight"), of("bias"), {}, {}, true, 0.1, 1e-5, false);
        x = activation == "relu"   ? torch::relu(x)
            : activation == "gelu" ? torch::gelu(x, "tanh")
            : activation == "silu" ? torch::silu(x)
                                   : torch::tanh(x);
      }
      const Training training;
      check_against(model, w, model(Variable(in)), lin(x, "head"));
    }
  }
}

/// Matmul FLOPs of a forward and of its backward.
template <class F>
std::pair<double, double> counted(F&& run) {
  FlopCount count;
  const CountFlops counting(count);
  const Training training;
  backward(sum(run()));
  return {count.forward.matmul, count.backward.matmul};
}

TEST_CASE("the formulas for FLOPs are what is counted", "[models]") {
  // A formula is three forwards. The gradient of the data, which nobody asks for, is in it, as the field counts.
  ConvNetConfig c;
  c.n_channel = 4;
  ConvNet net(c, {{2, 9, 7}, 5});
  auto [forward, behind] = counted([&] { return net(Variable(torch::randn({3, 2, 9, 7}))); });
  CHECK(3 * forward == 3 * net.flops_per_unit());
  CHECK(behind == 2 * forward - 2.0 * 3 * static_cast<double>(net.stem.weight.numel()) * 9 * 7);

  MLPConfig m;
  MLP mlp(m, {{8, 8}, 10});
  std::tie(forward, behind) = counted([&] { return mlp(Variable(torch::randn({3, 8, 8}))); });
  CHECK(3 * forward == 3 * mlp.flops_per_unit());
  CHECK(behind == 2 * forward - 2.0 * 3 * 64 * static_cast<double>(m.n_hidden));

  for (const std::string cell : {"lstm", "gru"}) {
    RNNConfig r;
    r.cell = cell, r.vocab_size = 11;
    RNN rnn(r);
    std::tie(forward, behind) = counted([&] { return rnn(torch::zeros({3, 5}, at::kLong)); });
    CHECK(3 * forward == 3 * 5 * rnn.flops_per_unit());
    const double state = 2.0 * 3 * 2 * (cell == "lstm" ? 4 : 3) * 128 * 128;  // of both layers' first, which is zero
    CHECK(behind == 2 * forward - state);
  }
}

TEST_CASE("parameter counts are what the models have", "[models]") {
  const auto has = [](const auto& model) { return count(parameters(model)); };
  for (const int64_t layers : {0, 1, 3}) {
    for (const std::string norm : {"none", "layer", "batch"}) {
      MLPConfig c;
      c.n_layer = layers, c.norm = norm;
      const ModelSizes sizes{{3, 4}, 7};
      CHECK(has(MLP(c, sizes)) == parameter_count(c, sizes));
    }
  }
  for (const int64_t stages : {1, 3}) {
    for (const int64_t blocks : {1, 2}) {
      ConvNetConfig c;
      c.n_stage = stages, c.n_block = blocks, c.n_channel = 5;
      for (const ModelSizes& sizes : {ModelSizes{{3, 8, 8}, 7}, ModelSizes{{8, 9}, 2}})
        CHECK(has(ConvNet(c, sizes)) == parameter_count(c, sizes));
    }
  }
  for (const std::string cell : {"lstm", "gru"}) {
    for (const bool tie : {true, false}) {
      RNNConfig c;
      c.cell = cell, c.n_layer = 3, c.n_hidden = 6, c.n_embd = tie ? 6 : 4, c.vocab_size = 9, c.tie_weights = tie;
      CHECK(has(RNN(c)) == parameter_count(c));
    }
  }
}

/// The loss of a model after some steps on one batch, and before them.
template <class Loss>
std::pair<double, double> learn(const ModuleRef& model, int steps, Loss&& loss_of) {
  OptimConfig oc;
  oc.kind = "adam", oc.weight_decay = 0;
  Optimizer optimizer(oc, parameters(ConstModuleRef(model)));
  double first = 0, loss = 0;
  for (int i = 0; i < steps; ++i) {
    const TrainingStep step({.seed = 1, .step = static_cast<uint64_t>(i)});
    for (const auto& p : parameters(model)) p.parameter.leaf().grad.reset();
    const Variable l = loss_of();
    loss = l.item();
    if (i == 0) first = loss;
    backward(l);
    optimizer.step(1e-2);
  }
  return {first, loss};
}

TEST_CASE("each model learns one batch by heart, in float32 and under bf16 and fp16", "[models]") {
  const at::Tensor labels = torch::arange(8).remainder(4), images = torch::randn({8, 6, 6});
  const at::Tensor ids = torch::randint(9, {4, 7}), targets = torch::randint(9, {4, 7});
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Autocast autocast(dtype);
    ConvNetConfig c;
    c.n_stage = 2, c.n_block = 1, c.n_channel = 8;
    ConvNet net(c, {{6, 6}, 4});
    initialize(net, Init::kaiming, 1);
    auto [first, last] = learn(net, 40, [&] { return cross_entropy(net(Variable(images)), labels); });
    CHECK(first > 0.7);
    CHECK(last < 0.05);
    {  // running statistics have followed: the model is as good outside training
      const Evaluation evaluation;
      CHECK(cross_entropy(net(Variable(images)), labels).item() < 0.2);
    }
    MLPConfig m;
    m.n_hidden = 32, m.norm = "batch";
    MLP mlp(m, {{6, 6}, 4});
    initialize(mlp, Init::kaiming, 1);
    std::tie(first, last) = learn(mlp, 40, [&] { return cross_entropy(mlp(Variable(images)), labels); });
    CHECK(last < 0.05);
    for (const std::string cell : {"lstm", "gru"}) {
      RNNConfig r;
      r.cell = cell, r.n_layer = 1, r.n_hidden = r.n_embd = 32, r.vocab_size = 9;
      RNN rnn(r);
      initialize(rnn, Init::fan_in, 1);
      std::tie(first, last) = learn(rnn, 150, [&] { return head_loss(rnn, ids, targets); });
      CHECK(first > 1.5);
      CHECK(last < 0.2);
    }
  }
}

TEST_CASE("models say what they can't be made of or take", "[models]") {
  CHECK_THAT(error_of([&] {
               ConvNet(ConvNetConfig{}, {{64}, 10});
             }),
             ContainsSubstring("convnet: inputs must be images [C, H, W] or [H, W], the data has [64]"));
  CHECK_THAT(error_of([&] {
               ConvNet(ConvNetConfig{}, {{1, 8, 8}, 10})(Variable(torch::ones({2, 1, 8, 7})));
             }),
             ContainsSubstring("[B,C=1,H=8,W=8], got float32[2,1,8,7]"));
  CHECK_THAT(error_of([&] {
               MLP(MLPConfig{}, {{4}, 2})(Variable(torch::ones({2, 5})));
             }),
             ContainsSubstring("inputs must have 4 numbers a sample, got float32[2,5]"));
  RNNConfig c;
  c.vocab_size = 5, c.n_embd = 64, c.tie_weights = true;
  CHECK_THAT(error_of([&] { RNN{c}; }), ContainsSubstring("tied weights need n_embd and n_hidden to be equal, not 64"));
  c.n_embd = 128, c.block_size = 4;
  CHECK_THAT(error_of([&] {
               const RNN rnn(c);
               rnn(torch::zeros({1, 5}, at::kLong));
             }),
             ContainsSubstring("5 tokens are longer than the context of 4"));
}

}  // namespace
