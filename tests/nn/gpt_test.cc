// Tests modules and initialization, and compares the complete GPT with the same model built from
// ATen ops with LibTorch's autograd.

#include <thread>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "nn/init.h"
#include "tests/support/catch.h"
#include "tests/support/gpt.h"
#include "tests/support/torch_oracle.h"
#include "train/analysis/forecast.h"
#include "train/session/passes.h"

namespace {

using namespace lathe;

GPTConfig tiny(bool bias = true, bool tie = true) {
  GPTConfig c;
  c.n_layer = 2;
  c.n_head = 2;
  c.n_embd = 8;
  c.block_size = 6;
  c.vocab_size = 11;
  c.bias = bias;
  c.tie_weights = tie;
  return c;
}

at::Tensor ids(at::IntArrayRef shape, int64_t vocab, int64_t salt) {
  at::Tensor t = torch::empty(shape, at::kLong);
  for (int64_t i = 0; i < t.numel(); ++i) t.view(-1)[i] = (i * 7 + salt * 5 + i * i) % vocab;
  return t;
}

/// Returns the loss of a GPT that is built from LibTorch's functions, with the config `c` and the
/// weights `w`, which are given by path.
at::Tensor reference_loss(const GPTConfig& c, std::map<std::string, at::Tensor>& w,
                          const at::Tensor& x_BT, const at::Tensor& y_BT) {
  const auto get = [&](const std::string& name) {
    return w.contains(name) ? w.at(name) : at::Tensor();
  };
  const auto lin = [&](const at::Tensor& x, const std::string& name) {
    return torch::nn::functional::linear(x, get(name + ".weight"), get(name + ".bias"));
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return torch::layer_norm(x, {c.n_embd}, get(name + ".weight"), get(name + ".bias"), 1e-5);
  };
  const int64_t b = x_BT.size(0), t = x_BT.size(1), d = c.n_embd / c.n_head;
  at::Tensor x =
      torch::embedding(w.at("tokens.weight"), x_BT) + w.at("positions.weight").slice(0, 0, t);
  for (int64_t l = 0; l < c.n_layer; ++l) {
    const std::string p = "blocks." + std::to_string(l);
    const auto qkv = lin(norm(x, p + ".norm1"), p + ".attn.qkv").chunk(3, 2);
    const auto heads = [&](int i) {
      return qkv[static_cast<size_t>(i)].view({b, t, c.n_head, d}).transpose(1, 2);
    };
    at::Tensor s = heads(0).matmul(heads(1).transpose(2, 3)) / std::sqrt(static_cast<double>(d));
    s = s.masked_fill(torch::ones({t, t}, at::kBool).triu(1), -INFINITY).softmax(-1);
    x = x + lin(s.matmul(heads(2)).transpose(1, 2).reshape({b, t, c.n_embd}), p + ".attn.proj");
    x = x + lin(torch::gelu(lin(norm(x, p + ".norm2"), p + ".mlp.up"), "tanh"), p + ".mlp.down");
  }
  const at::Tensor logits =
      torch::linear(norm(x, "norm"), c.tie_weights ? w.at("tokens.weight") : w.at("head.weight"));
  return torch::cross_entropy_loss(logits.view({-1, c.vocab_size}), y_BT.reshape({-1}));
}

TEST_CASE("the GPT's loss and gradients agree with LibTorch to 1e-10", "[gpt]") {
  for (const bool bias : {true, false}) {
    for (const bool tie : {true, false}) {
      const GPTConfig c = tiny(bias, tie);
      GPT model = test::make_gpt(c, 3);
      move_to(model, at::kCPU, at::kDouble);
      auto params = parameters(model);
      std::map<std::string, at::Tensor> w;
      for (auto& p : params) {  // random values, so that every term matters
        p.parameter.data().add_(torch::randn(p.parameter.sizes(), at::kDouble), 0.3);
        w[p.path] = p.parameter.data().clone().requires_grad_();
      }

      const at::Tensor x = ids({3, 5}, c.vocab_size, 1), y = ids({3, 5}, c.vocab_size, 2);
      const Variable loss = head_loss(model, x, y);
      backward(loss);
      const at::Tensor wanted = reference_loss(c, w, x, y);
      wanted.backward();

      CHECK(loss.item() == Approx(wanted.item<double>()).epsilon(1e-10));
      for (const auto& p : params) {
        INFO(p.path);
        REQUIRE(p.parameter.grad().defined());
        const at::Tensor g = w.at(p.path).grad();
        CHECK((p.parameter.grad() - g).abs().max().item<double>() <=
              1e-10 * std::max(1.0, g.abs().max().item<double>()));
      }
    }
  }
}

TEST_CASE("the GPT overfits one batch", "[gpt]") {
  GPTConfig c = tiny();
  c.n_embd = 32;
  GPT model = test::make_gpt(c, 1);
  OptimConfig oc;
  oc.weight_decay = 0;
  const auto params = parameters(model);
  Optimizer optimizer(oc, params);
  const at::Tensor x = ids({4, 6}, c.vocab_size, 1);
  at::Tensor y = ids({4, 6}, c.vocab_size, 2);
  double loss = 0;
  for (int step = 0; step < 300; ++step) {
    zero_grad(model);
    const Variable l = head_loss(model, x, y);
    loss = l.item();
    backward(l);
    optimizer.step(1e-2);
  }
  CHECK(loss < 0.01);
}

/// Returns the gradients of a step with four sequences of six tokens, divided into `parts`
/// micro-batches.
std::vector<at::Tensor> accumulated(at::ScalarType dtype, const at::Tensor& x, const at::Tensor& y,
                                    int64_t parts) {
  GPTConfig c = tiny();
  c.dropout = 0.2;
  GPT model = test::make_gpt(c, 5);
  move_to(model, at::kCPU, dtype);
  const double counted = y.ne(-100).sum().item<double>();
  const int64_t rows = x.size(0) / parts;
  for (int64_t i = 0; i < parts; ++i) {
    test::run_micro_batch(
        model, {x.slice(0, i * rows, (i + 1) * rows), y.slice(0, i * rows, (i + 1) * rows)},
        counted, at::kFloat, {.seed = 9, .step = 4, .first_sample = i * rows});
  }
  std::vector<at::Tensor> grads;
  for (const auto& p : parameters(model)) grads.push_back(p.parameter.grad());
  return grads;
}

TEST_CASE("four micro-batches give the gradients of one batch, with ignored tokens and dropout",
          "[gpt]") {
  const at::Tensor x = ids({4, 6}, 11, 1);
  at::Tensor y = ids({4, 6}, 11, 2);
  y[0].slice(0, 0, 5).fill_(-100);  // the sequences have 1, 6, 3 and 6 targets
  y[2].slice(0, 1, 4).fill_(-100);

  for (const auto& [dtype, tolerance] :
       {std::pair{at::kDouble, 1e-10}, std::pair{at::kFloat, 1e-5}}) {
    const auto one = accumulated(dtype, x, y, 1), four = accumulated(dtype, x, y, 4);
    for (size_t i = 0; i < one.size(); ++i) {
      CHECK((one[i] - four[i]).abs().max().item<double>() <=
            tolerance * std::max(1e-3, one[i].abs().max().item<double>()));
    }
  }

  // The comparison notices dropout masks that ignore the position in the global batch.
  GPTConfig c = tiny();
  c.dropout = 0.2;
  GPT model = test::make_gpt(c, 5);
  move_to(model, at::kCPU, at::kDouble);

  for (int64_t i = 0; i < 4; ++i) {
    test::run_micro_batch(model, {x.slice(0, i, i + 1), y.slice(0, i, i + 1)}, 16, at::kFloat,
                          {.seed = 9, .step = 4, .first_sample = 0});
  }

  const auto one = accumulated(at::kDouble, x, y, 1);
  CHECK((parameters(model)[0].parameter.grad() - one[0]).abs().max().item<double>() > 1e-4);
}

TEST_CASE("under bf16, matmuls read the working copy, and other ops stay in float32", "[gpt]") {
  const GPTConfig c = tiny();
  GPT model = test::make_gpt(c, 3);
  auto params = parameters(model);
  make_working_copies(params, at::kBFloat16, true, /*low_grad=*/true);
  const at::Tensor x = ids({3, 5}, c.vocab_size, 1), y = ids({3, 5}, c.vocab_size, 2);
  const auto loss_in = [&](at::ScalarType dtype) {
    const Autocast autocast(dtype);
    return head_loss(model, x, y);
  };

  const Variable wide = loss_in(at::kFloat), low = loss_in(at::kBFloat16);
  CHECK(low.dtype() == at::kFloat);
  CHECK(low.item() != wide.item());
  CHECK(low.item() == Approx(wide.item()).epsilon(0x1p-7));  // bf16's spacing

  zero_grad(model);
  backward(wide);
  std::map<std::string, at::Tensor> exact;
  for (const auto& p : params) exact[p.path] = p.parameter.grad().to(at::kFloat).clone();
  zero_grad(model);
  backward(low);
  for (const auto& p : params) {
    INFO(p.path);
    const bool matrix =
        p.role == Role::weight || p.role == Role::residual_weight || p.path == "tokens.weight";
    CHECK(p.parameter.grad().scalar_type() == (matrix ? at::kBFloat16 : at::kFloat));
    const at::Tensor e = exact.at(p.path);
    CHECK((p.parameter.grad().to(at::kFloat) - e).abs().max().item<double>() <=
          0x1p-4 * e.abs().max().item<double>());
  }

  // Matmuls in bf16 read the working copy. A change of the copy changes the loss in bf16 and not in
  // float32.
  for (const auto& p : params) {
    if (p.path == "blocks.0.mlp.up.weight") p.parameter.leaf().precision.low.fill_(1);
  }
  CHECK(loss_in(at::kFloat).item() == wide.item());
  CHECK(loss_in(at::kBFloat16).item() != low.item());

  // Autocast applies only to the thread that started it.
  bool elsewhere = true;
  const Autocast autocast(at::kBFloat16);
  std::thread([&] {
    elsewhere =
        linear(Variable(torch::ones({2, 2})), Variable(torch::ones({2, 2}))).dtype() == at::kFloat;
  }).join();
  CHECK(elsewhere);
}

TEST_CASE("counted matmul FLOPs agree with the 6N formula", "[gpt]") {
  LoadedConfig loaded;
  RunConfig& c = loaded.config;
  GPTConfig& own = *static_cast<GPTConfig*>(c.model.own.data());
  own = tiny();
  own.n_embd = 256;
  own.block_size = 32;
  own.vocab_size = 100;
  c.train.batch_size = 2;
  c.train.device = "cpu";
  const double formula = GPT(own).flops_per_unit() * 2 * 32;
  // The N of the formula includes norms and biases, which have no matmul. A block has 12 C^2
  // weights of matrices, and 13 C norms and biases.
  CHECK(dry_step(loaded).micro_batch.matmul() == Approx(formula).epsilon(0.01));
}

TEST_CASE("backward computes no matmul for a factor that is frozen", "[gpt]") {
  const auto backward_of = [](bool x_trained, bool w_trained) {
    const auto make = [](bool trained, at::IntArrayRef sizes) {
      return trained ? Variable::parameter(torch::ones(sizes)) : Variable(torch::ones(sizes));
    };
    FlopCount count;
    const CountFlops counting(count);
    backward(sum(linear(make(x_trained, {4, 8}), make(w_trained, {16, 8}))));
    return count.backward.matmul / count.forward.matmul;
  };
  CHECK(backward_of(true, true) == 2);
  CHECK(backward_of(true, false) == 1);
  CHECK(backward_of(false, true) == 1);
}

TEST_CASE("initial values have the standard deviation of their scheme", "[gpt]") {
  const auto spread = [](const char* init, const char* path) {
    GPTConfig c = tiny();
    c.n_embd = 128;
    c.vocab_size = 500;
    c.init = init;
    GPT model = test::make_gpt(c, 1);
    for (const auto& p : parameters(model)) {
      if (p.path == path) return p.parameter.data().to(at::kDouble).std().item<double>();
    }
    return -1.0;
  };
  // The standard error of the standard deviation of 49152 values is 0.3%.
  CHECK(spread("gpt2", "blocks.0.attn.qkv.weight") == Approx(0.02).epsilon(0.02));
  CHECK(spread("gpt2", "blocks.0.mlp.down.weight") == Approx(0.02 / 2).epsilon(0.02));
  CHECK(spread("xavier_uniform", "blocks.0.attn.qkv.weight") ==
        Approx(std::sqrt(2.0 / (128 + 384))).epsilon(0.02));
  CHECK(spread("xavier_normal", "blocks.0.attn.qkv.weight") ==
        Approx(std::sqrt(2.0 / (128 + 384))).epsilon(0.02));
  CHECK(spread("kaiming", "blocks.0.attn.qkv.weight") ==
        Approx(std::sqrt(2.0 / 128)).epsilon(0.02));
  CHECK(spread("fan_in", "blocks.0.attn.qkv.weight") == Approx(std::sqrt(1.0 / 128)).epsilon(0.02));
  CHECK(spread("kaiming", "tokens.weight") == Approx(0.02).epsilon(0.02));
}

TEST_CASE("a layer names itself and both shapes when its input does not fit", "[gpt]") {
  const CausalSelfAttention attention(8, 2, true);
  CHECK_THAT(error_of([&] { attention(Variable(torch::randn({2, 3, 9}))); }),
             ContainsSubstring("CausalSelfAttention: ") && ContainsSubstring("[B,T,C=8]") &&
                 ContainsSubstring("float32[2,3,9]") && ContainsSubstring("C is 9"));
  CHECK_THAT(error_of([&] { attention(Variable(torch::randn({2, 8}))); }),
             ContainsSubstring("CausalSelfAttention: ") && ContainsSubstring("[B,T,C=8]") &&
                 ContainsSubstring("float32[2,8]"));
  const GPT model(tiny());
  CHECK_THAT(error_of([&] { model(torch::zeros({1, 7}, at::kLong)); }),
             ContainsSubstring("GPT: 7 tokens") && ContainsSubstring("context of 6"));
}

TEST_CASE("an MLP learns exclusive or", "[gpt]") {
  Sequential model = mlp({2, 16, 1});
  auto params = parameters(model);
  REQUIRE(params.size() == 4);
  CHECK(params[0].path == "0.weight");
  initialize(params, Init::kaiming, 1, 3);
  OptimConfig oc;
  oc.kind = "adam";
  oc.weight_decay = 0;
  Optimizer optimizer(oc, params);
  const Variable x(torch::tensor({{0.f, 0.f}, {0.f, 1.f}, {1.f, 0.f}, {1.f, 1.f}})),
      y(torch::tensor({{0.f}, {1.f}, {1.f}, {0.f}}));
  double loss = 1;
  for (int i = 0; i < 500; ++i) {
    zero_grad(model);
    const Variable l = mse_loss(model(x), y);
    loss = l.item();
    backward(l);
    optimizer.step(0.02);
  }
  CHECK(loss < 1e-3);
}

TEST_CASE("dropout keeps the mean, and drops the fraction p of the elements", "[gpt]") {
  const Variable x(torch::ones({100, 1000}));
  const TrainingStep step({.seed = 1, .step = 1});
  const at::Tensor y = dropout(x, 0.25, 1).data();
  CHECK(y.eq(0).to(at::kFloat).mean().item<double>() ==
        Approx(0.25).margin(0.006));  // four standard deviations
  CHECK(y.mean().item<double>() == Approx(1).margin(0.008));
}

struct TiedPair {
  Embedding in{5, 3};
  Linear out{3, 5, /*with_bias=*/false};
  TiedPair() { out.weight = in.weight; }
  void visit(Visit& v) {
    v("in", in);
    v("out", out);
  }
};

TEST_CASE("parameters tied by assignment count as one in lists, in a step and in a move", "[gpt]") {
  TiedPair model;
  const auto params = parameters(model);
  REQUIRE(params.size() == 1);
  CHECK(params[0].path == "in.weight");
  params[0].parameter.leaf().grad = torch::ones({5, 3});
  OptimConfig c;
  c.kind = "sgd";
  c.weight_decay = 0;
  c.grad_clip = 0;
  Optimizer optimizer(c, params);
  optimizer.step(0.25);
  CHECK(model.out.weight.data().eq(-0.25).all().item<bool>());
  CHECK(optimizer.control().grad_norm == Approx(std::sqrt(15.0)));
  move_to(model, at::kCPU, at::kDouble);
  CHECK(model.out.weight.node() == model.in.weight.node());
  CHECK(model.out.weight.data().is_same(model.in.weight.data()));
}

TEST_CASE("move_to() copies values, and frozen parameters stay frozen", "[gpt]") {
  TiedPair model;
  model.out.weight = Variable(torch::ones({5, 3}));
  const at::Tensor before = model.in.weight.data();
  move_to(model, at::kCPU, at::kFloat);
  CHECK(!model.out.weight.requires_grad());
  CHECK(model.in.weight.requires_grad());
  before.fill_(7);
  CHECK(model.in.weight.data().eq(0).all().item<bool>());
}

TEST_CASE("a write to a weight is noticed by an old graph, by casts and by its working copy",
          "[gpt]") {
  const Variable w = Variable::parameter(torch::zeros({4, 4}), "w"),
                 x = Variable::parameter(torch::ones({2, 4}));
  const std::vector<NamedParameter> params{{"w", w, Role::weight}};
  const Variable old = sum(linear(x, w));
  initialize(params, Init::gpt2, 1, 3);
  CHECK_THAT(error_of([&] { backward(old); }),
             ContainsSubstring("float32[4,4]") && ContainsSubstring("in place"));
  for (const bool copies : {true, false}) {
    make_working_copies(params, at::kBFloat16, copies, false);
    const Autocast autocast(at::kBFloat16);
    const at::Tensor before = linear(x, w).data().to(at::kFloat);
    CHECK(before.abs().max().item<double>() > 0);
    w.data().mul_(2);
    CHECK(linear(x, w).data().to(at::kFloat).equal(before * 2));
    w.leaf().precision.low = at::Tensor();
  }
}

}  // namespace
