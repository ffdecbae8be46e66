// Compares convolutions, batch norm and recurrent layers with LibTorch's layers, which get the same
// weights.
#include <algorithm>

#include <ATen/Parallel.h>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "core/mode.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "tests/support/catch.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;
using Leaves = std::map<std::string, at::Tensor>;

/// Sets random parameters, so that every term of a formula matters. Returns copies of the
/// parameters, by path, for LibTorch's autograd.
Leaves randomise(const ModuleRef& model, at::ScalarType dtype) {
  move_to(model, at::kCPU, dtype);
  Leaves out;
  for (const auto& p : parameters(model)) {
    p.parameter.data().copy_(torch::randn(p.parameter.sizes(), at::kDouble) * 0.5);
    out[p.path] = p.parameter.data().clone().requires_grad_();
  }
  return out;
}

/// Checks |a - b| <= tolerance max(1, |b|), which allows for another order of sums.
void check_near(const std::string& what, const at::Tensor& a, const at::Tensor& b,
                double tolerance) {
  INFO(what);
  REQUIRE(a.defined());
  REQUIRE(b.defined());
  REQUIRE(a.sizes() == b.sizes());
  const double error = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  CHECK(error <= tolerance * std::max(1.0, b.abs().max().item<double>()));
}
void check_gradients(const ModuleRef& model, const Leaves& wanted, double tolerance) {
  for (const auto& p : parameters(model))
    check_near(p.path, p.parameter.grad(), wanted.at(p.path).grad(), tolerance);
}
constexpr double tolerance_of(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-11 : 2e-5; }

TEST_CASE("Conv2d and its gradients agree with LibTorch", "[conv_and_recurrent]") {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    Conv2d conv(4, 6, {3, 2}, {.stride = {2, 1}, .padding = 1, .groups = 2});
    auto w = randomise(conv, dtype);
    const at::Tensor in = torch::randn({3, 4, 7, 5}, dtype), x = in.clone().requires_grad_();
    const Variable v = Variable::parameter(in);
    const Variable y = conv(v);
    const at::Tensor wanted =
        torch::conv2d(x, w.at("weight"), w.at("bias"), {2, 1}, at::IntArrayRef{1, 1}, 1, 2);
    check_near("y", y.data(), wanted.detach(), tolerance_of(dtype));
    const at::Tensor dy = torch::randn_like(wanted);
    backward(y, dy);
    wanted.backward(dy);
    check_near("dx", v.grad(), x.grad(), tolerance_of(dtype));
    check_gradients(conv, w, tolerance_of(dtype));
  }
}

TEST_CASE("batch norm and its running statistics agree with LibTorch, in training and evaluation",
          "[conv_and_recurrent]") {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const double tolerance = tolerance_of(dtype);
    BatchNorm2d norm(3, /*momentum=*/0.3);
    randomise(norm, dtype);
    torch::nn::BatchNorm2d theirs(torch::nn::BatchNorm2dOptions(3).momentum(0.3));
    theirs->to(dtype);
    torch::NoGradGuard const guard;
    theirs->weight.copy_(norm.weight.data());
    theirs->bias.copy_(norm.bias.data());

    // Run three training steps, then one evaluation, which uses the running statistics.
    for (int step = 0; step < 4; ++step) {
      const bool training = step < 3;
      INFO("step " << step);
      const at::AutoGradMode on(true);
      theirs->train(training);
      zero_grad(norm);
      theirs->zero_grad();
      std::optional<Training> mode;
      if (training) mode.emplace();

      const at::Tensor in = torch::randn({4, 3, 2, 5}, dtype) * (step + 1) + step,
                       x = in.clone().requires_grad_();
      const Variable v = Variable::parameter(in);
      const Variable y = norm(v);
      const at::Tensor wanted = theirs->forward(x), dy = torch::randn_like(in);
      check_near("y", y.data(), wanted.detach(), tolerance);
      backward(y, dy);
      wanted.backward(dy);

      check_near("dx", v.grad(), x.grad(), 10 * tolerance);  // gradients are differences of sums
      check_near("dweight", norm.weight.grad(), theirs->weight.grad(), 10 * tolerance);
      check_near("dbias", norm.bias.grad(), theirs->bias.grad(), 10 * tolerance);
      check_near("running mean", norm.running_mean, theirs->running_mean, tolerance);
      check_near("running variance", norm.running_var, theirs->running_var, tolerance);
      CHECK(norm.num_batches_tracked.equal(theirs->num_batches_tracked));
    }
  }
}

TEST_CASE("running statistics are updated once per micro-batch, and only in training",
          "[conv_and_recurrent]") {
  BatchNorm1d norm(2);
  const Variable x(torch::randn({8, 2}) + 3);
  const auto moved = [&](auto&& act) {
    const at::Tensor before = norm.running_mean.clone(), var = norm.running_var.clone();
    const int64_t count = norm.num_batches_tracked.item<int64_t>();
    act();
    const bool mean_moved = !norm.running_mean.equal(before),
               var_moved = !norm.running_var.equal(var);
    CHECK(mean_moved == var_moved);
    CHECK(mean_moved == (norm.num_batches_tracked.item<int64_t>() != count));
    return norm.num_batches_tracked.item<int64_t>() - count;
  };

  CHECK(moved([&] { norm(x); }) == 0);

  const TrainingStep step({.seed = 1, .step = 1});
  DrawState state = DrawState::now();
  CHECK(moved([&] { norm(x); }) == 1);
  CHECK(moved([&] {
          norm(Variable(x.data().slice(0, 0, 4)));
          norm(Variable(x.data().slice(0, 4, 8)));
        }) == 2);

  // Recomputation, evaluation and an empty batch do not update the running statistics.
  CHECK(moved([&] {
          const RestoreRngState again(std::move(state));
          const at::Tensor once = norm(x).data();
          CHECK(once.mean().item<double>() ==
                Approx(0).margin(1e-5));  // normalized by the statistics of the batch
        }) == 0);
  CHECK(moved([&] {
          const Evaluation evaluation;
          norm(x);
        }) == 0);
  CHECK(moved([&] { norm(Variable(torch::empty({0, 2}))); }) == 0);

  CHECK_THAT(error_of([&] { norm(Variable(torch::ones({1, 2}))); }),
             ContainsSubstring("per channel") && ContainsSubstring("train.batch_size"));
  CHECK_THAT(error_of([&] { norm(Variable(torch::ones({4, 3}))); }),
             ContainsSubstring("BatchNorm1d: ") && ContainsSubstring("[B,C=2]") &&
                 ContainsSubstring("float32[4,3]"));
  CHECK(moved([&] { norm(Variable(torch::randn({2, 2, 3}))); }) == 1);
}

struct RecurrentCase {
  bool lstm, bias, state;
  int64_t layers, batch;
  bool bidirectional = false;
};

/// Compares the results and gradients of a recurrent module with torch::lstm or torch::gru.
template <class Module>
void check_recurrent(const RecurrentCase& c, at::ScalarType dtype) {
  INFO((c.lstm ? "LSTM" : "GRU") << " bias " << c.bias << " state " << c.state << " layers "
                                 << c.layers << " batch " << c.batch << " bidirectional "
                                 << c.bidirectional);
  constexpr int64_t t = 5, in = 4, h = 6;
  const int64_t b = c.batch, states = c.layers * (c.bidirectional ? 2 : 1);
  Module module(in, h, {.n_layer = c.layers, .bias = c.bias, .bidirectional = c.bidirectional});
  auto w = randomise(module, dtype);

  // LibTorch's functions take the parameters as one list.
  std::vector<at::Tensor> flat;
  for (int64_t l = 0; l < states; ++l) {
    const std::string place = c.bidirectional
                                  ? std::to_string(l / 2) + (l % 2 == 1 ? "_reverse" : "")
                                  : std::to_string(l);
    for (const char* name : {"weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l"}) {
      const auto found = w.find(name + place);
      CHECK((found != w.end()) == (c.bias || name[0] == 'w'));
      if (found != w.end()) flat.push_back(found->second);
    }
  }

  const auto leaf = [&](at::IntArrayRef sizes) {
    return torch::randn(sizes, dtype).requires_grad_();
  };
  const at::Tensor x = leaf({b, t, in}), h0 = leaf({states, b, h}), c0 = leaf({states, b, h});
  const auto ours = [](const at::Tensor& t_) { return Variable::parameter(t_.detach().clone()); };
  const Variable vx = ours(x), vh = ours(h0), vc = ours(c0);
  const at::Tensor zero = torch::zeros({states, b, h}, dtype);

  std::vector<Variable> results;
  std::vector<at::Tensor> wanted;
  if constexpr (std::is_same_v<Module, LSTM>) {
    const auto [y, last] = module(vx, c.state ? LSTMState{vh, vc} : LSTMState{});
    results = {y, last.h, last.c};
    const auto [ty, th, tc] =
        torch::lstm(x, {c.state ? h0 : zero, c.state ? c0 : zero}, flat, c.bias, c.layers, 0.0,
                    false, c.bidirectional, /*batch_first=*/true);
    wanted = {ty, th, tc};
  } else {
    const auto [y, last] = module(vx, c.state ? vh : Variable());
    results = {y, last};
    const auto [ty, th] = torch::gru(x, c.state ? h0 : zero, flat, c.bias, c.layers, 0.0, false,
                                     c.bidirectional, /*batch_first=*/true);
    wanted = {ty, th};
  }

  Variable ours_sum;
  at::Tensor theirs_sum;
  for (size_t i = 0; i < wanted.size(); ++i) {
    check_near("result " + std::to_string(i), results[i].data(), wanted[i].detach(),
               tolerance_of(dtype));
    const at::Tensor weight = torch::randn_like(wanted[i]);
    const Variable term = sum(results[i] * Variable(weight));
    ours_sum = i == 0 ? term : ours_sum + term;
    theirs_sum = i == 0 ? (wanted[i] * weight).sum() : theirs_sum + (wanted[i] * weight).sum();
  }

  // The second backward pass needs the tensors that the first one retained.
  backward(ours_sum, {}, /*retain=*/true);
  backward(ours_sum);
  theirs_sum.backward({}, /*retain_graph=*/true);
  theirs_sum.backward();
  check_gradients(module, w, 10 * tolerance_of(dtype));  // gradients are sums over the time steps
  check_near("dx", vx.grad(), x.grad(), 10 * tolerance_of(dtype));
  if (c.state) check_near("dh", vh.grad(), h0.grad(), 10 * tolerance_of(dtype));
  if (c.state && c.lstm) check_near("dc", vc.grad(), c0.grad(), 10 * tolerance_of(dtype));
}

TEST_CASE("LSTM and GRU agree with LibTorch, with initial states and without",
          "[conv_and_recurrent]") {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    for (const bool bias : {true, false}) {
      for (const bool state : {true, false}) {
        for (const int64_t layers : {1, 2}) {
          for (const int64_t batch : {3, 18}) {  // an LSTM layer is one op if batch >= 16
            RecurrentCase c{
                .lstm = true, .bias = bias, .state = state, .layers = layers, .batch = batch};
            check_recurrent<LSTM>(c, dtype);
            c.lstm = false;
            check_recurrent<GRU>(c, dtype);
          }
          check_recurrent<LSTM>({.lstm = true,
                                 .bias = bias,
                                 .state = state,
                                 .layers = layers,
                                 .batch = 18,
                                 .bidirectional = true},
                                dtype);
        }
      }
    }
  }
}

TEST_CASE("a recurrent module's gradients agree with central differences", "[conv_and_recurrent]") {
  const auto check = [](auto module) {
    randomise(module, at::kDouble);
    const at::Tensor x = torch::randn({2, 3, 3}, at::kDouble),
                     weight = torch::randn({2, 3, 4}, at::kDouble);

    const auto value = [&] { return sum(module(Variable(x)).first * Variable(weight)); };
    backward(value());

    for (const auto& p : parameters(module)) {
      INFO(p.path);
      const at::Tensor t = p.parameter.data().view(-1), g = p.parameter.grad().view(-1);
      for (int64_t i = 0; i < t.numel(); i += 5) {
        const double at = t[i].item<double>(), eps = 1e-6;
        t[i] = at + eps;
        const double above = value().item();
        t[i] = at - eps;
        const double below = value().item();
        t[i] = at;
        CHECK(g[i].item<double>() ==
              Approx((above - below) / (2 * eps)).epsilon(1e-3).margin(1e-5));
      }
    }
  };

  check(LSTM(3, 4, {.n_layer = 2}));
  check(GRU(3, 4, {.n_layer = 2}));
}

TEST_CASE("a state dict of torch's LSTM can be loaded into Lathe's", "[conv_and_recurrent]") {
  LSTM ours(3, 5, {.n_layer = 2});
  torch::nn::LSTM theirs(torch::nn::LSTMOptions(3, 5).num_layers(2).batch_first(true));
  StateDict state;
  for (const auto& p : theirs->named_parameters()) state[p.key()] = p.value().detach();
  CHECK(load_state_dict(ours, state).missing.empty());
  const at::Tensor x = torch::randn({2, 4, 3});
  check_near("y", ours(Variable(x)).first.data(), std::get<0>(theirs->forward(x)).detach(), 1e-5);
}

TEST_CASE("dropout between recurrent layers depends on the position in the global batch",
          "[conv_and_recurrent]") {
  LSTM lstm(3, 8, {.n_layer = 2, .dropout = 0.5});
  initialize(lstm, Init::fan_in, 3);
  const at::Tensor x = torch::randn({4, 5, 3});
  const auto run = [&](int64_t begin, int64_t end, int64_t first) {
    const TrainingStep step({.seed = 3, .step = 2, .first_sample = first});
    return lstm(Variable(x.slice(0, begin, end))).first.data();
  };
  const at::Tensor whole = run(0, 4, 0), plain = lstm(Variable(x)).first.data();
  CHECK(!whole.equal(plain));
  CHECK(run(0, 4, 0).equal(whole));
  CHECK(at::cat({run(0, 2, 0), run(2, 4, 2)}).allclose(whole, 1e-5, 1e-6));
  CHECK(!at::cat({run(0, 2, 0), run(2, 4, 0)}).allclose(whole, 1e-5, 1e-6));
  LSTM one(3, 8, {.dropout = 0.5});  // dropout applies only between layers
  initialize(one, Init::fan_in, 3);
  const at::Tensor y = one(Variable(x)).first.data();
  const Training training;
  CHECK(one(Variable(x)).first.data().equal(y));
}

TEST_CASE("convolutions and recurrent layers are reproducible on a fixed number of threads",
          "[conv_and_recurrent]") {
  Conv2d conv(13, 24, 3, {.stride = 2, .padding = 1});
  BatchNorm2d norm(24);
  LSTM lstm(24, 40);
  initialize(conv, Init::kaiming, 1);
  initialize(norm, Init::kaiming, 1);
  initialize(lstm, Init::fan_in, 1);
  const at::Tensor x = torch::randn({9, 13, 8, 6});

  const auto run = [&](at::ScalarType dtype) {
    for (const ModuleRef& m : {ModuleRef(conv), ModuleRef(norm), ModuleRef(lstm)}) zero_grad(m);
    const Autocast autocast(dtype);
    const Training training;
    const Variable v = Variable::parameter(x);
    const Variable y = lstm(transpose(flatten(norm(conv(v)), 2), 1, 2)).first;
    backward(sum(y * y));
    std::vector<at::Tensor> out{y.data(), v.grad()};
    for (const ModuleRef& m : {ModuleRef(conv), ModuleRef(norm), ModuleRef(lstm)})
      for (const auto& p : parameters(m)) out.push_back(p.parameter.grad().clone());
    return out;
  };

  const int threads = at::get_num_threads();
  for (const int n : {1, 2}) {
    at::set_num_threads(n);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto first = run(dtype), second = run(dtype);
      for (size_t i = 0; i < first.size(); ++i) CHECK(first[i].equal(second[i]));
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("under autocast, results have low precision, except cell states and wide batch norms",
          "[conv_and_recurrent]") {
  Conv2d conv(3, 8, 3, {.padding = 1});
  BatchNorm2d norm(8);
  initialize(conv, Init::kaiming, 1);
  initialize(norm, Init::kaiming, 1);
  GRU gru(6, 8);
  LSTM lstm(6, 8);
  initialize(gru, Init::fan_in, 1);
  initialize(lstm, Init::fan_in, 1);

  const Variable x(torch::randn({2, 3, 6, 6})), s(torch::randn({2, 7, 6}));
  const Training training;
  const at::Tensor exact = norm(conv(x)).data(), exact_lstm = lstm(s).first.data(),
                   exact_gru = gru(s).first.data();

  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Autocast autocast(dtype);
    CHECK(conv(x).dtype() == dtype);
    CHECK(norm(conv(x)).dtype() == dtype);
    CHECK(norm(conv(x), /*wide=*/true).dtype() == at::kFloat);
    const auto [y, last] = lstm(s);
    CHECK(y.dtype() == dtype);
    CHECK(last.c.dtype() == at::kFloat);
    CHECK(gru(s).first.dtype() == dtype);

    const double spacing =
        dtype == at::kBFloat16 ? 0x1p-7 : 0x1p-10;  // one relative spacing; errors add up
    check_near("norm", norm(conv(x)).data(), exact, 4 * spacing);
    check_near("LSTM", y.data(), exact_lstm, 4 * spacing);
    check_near("GRU", gru(s).first.data(), exact_gru, 4 * spacing);
  }
}

TEST_CASE("errors of convolutions and recurrent layers name the layer if an input does not fit",
          "[conv_and_recurrent]") {
  const Conv2d conv(3, 4, 3);
  CHECK_THAT(error_of([&] { conv(Variable(torch::ones({1, 2, 5, 5}))); }),
             ContainsSubstring("Conv2d: ") && ContainsSubstring("[B,C=3,H,W]") &&
                 ContainsSubstring("float32[1,2,5,5]"));
  CHECK_THAT(error_of([&] { conv(Variable(torch::ones({1, 3, 2, 5}))); }),
             ContainsSubstring("kernel of reach 3 ") && ContainsSubstring("image of 2"));
  CHECK_THAT(error_of([&] { Conv2d(3, 4, 3, {.groups = 2}); }),
             ContainsSubstring("Conv2d: 2 groups") && ContainsSubstring("3 channels in"));
  // The fused kernel needs at least 2 steps and 16 sequences.
  const auto ones = [](std::vector<int64_t> sizes) { return Variable(torch::ones(sizes)); };
  CHECK_THAT(error_of([&] {
               lstm_layer(ones({2, 16, 4}), ones({16, 4}), ones({4}), ones({16, 4}), ones({16, 4}),
                          ones({16, 4}), false);
             }),
             ContainsSubstring("lstm_layer: ") && ContainsSubstring("bias [4 H]") &&
                 ContainsSubstring("float32[4]"));
  const GRU gru(3, 4, {.n_layer = 2});
  CHECK_THAT(error_of([&] { gru(Variable(torch::ones({2, 5, 4}))); }),
             ContainsSubstring("GRU: ") && ContainsSubstring("[B,T,C=3]"));
  CHECK_THAT(
      error_of([&] { gru(Variable(torch::ones({2, 5, 3})), Variable(torch::ones({1, 2, 4}))); }),
      ContainsSubstring("GRU: ") && ContainsSubstring("state h ") &&
          ContainsSubstring("[L=2,B=2,H=4]") && ContainsSubstring("float32[1,2,4]") &&
          ContainsSubstring("L is 1"));
  CHECK_THAT(error_of([&] { gru(Variable(torch::ones({2, 0, 3}))); }),
             ContainsSubstring("GRU: ") && ContainsSubstring("no steps"));
}

}  // namespace
