// Tests of small cases that detect faults which larger comparisons do not notice: ends of vectors
// and ranges, frozen weights, shared gradients.
#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "autograd/fp8.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "autograd/ops/images.h"
#include "core/kernels/update_math.h"
#include "core/mode.h"
#include "core/rng.h"
#include "optim/optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/gpt.h"

namespace {

using namespace lathe;

TEST_CASE("dropout's mask follows the outputs of Philox from any start position",
          "[boundary_cases]") {
  const int64_t row = 101;
  const TrainingStep step({.seed = 5, .step = 9, .first_sample = 3});
  const at::Tensor y = dropout(Variable(torch::ones({6, row})), 0.5, 77).data().view(-1);
  const RngKey key = make_key(5, 77);
  int64_t wrong = 0;
  for (int64_t i = 0; i < y.numel(); ++i) {
    const auto place = static_cast<uint64_t>(3 * row + i);
    const bool dropped = philox(counter(place / 4, 9), key)[place % 4] < 0x80000000u;
    wrong += (y[i].item<float>() == 0) != dropped;
  }
  CHECK(wrong == 0);
}

TEST_CASE("scores and logits far below zero give correct results", "[boundary_cases]") {
  at::Tensor qkv = torch::zeros({1, 9, 48});
  qkv.slice(2, 0, 16).fill_(10);
  qkv.slice(2, 16, 32).fill_(-10);  // scores of -400; the last SIMD vector of 9 keys is partial
  qkv.slice(2, 32, 48).copy_(torch::arange(9).view({9, 1}).expand({9, 16}));
  const at::Tensor y = attention(Variable(qkv), 1).data();
  for (int64_t t = 0; t < 9; ++t)
    CHECK(y[0][t][0].item<double>() == Approx(static_cast<double>(t) / 2));
  const Variable x(torch::ones({3, 4})), w(torch::full({33, 4}, -50.0));
  CHECK(linear_cross_entropy(x, w, torch::zeros({3}, at::kLong)).item() == Approx(std::log(33.0)));
}

TEST_CASE("a NaN whose payload is all ones stays NaN in bfloat16", "[boundary_cases]") {
  const at::Tensor x = torch::full({2, 20}, std::bit_cast<float>(0x7fffffffu));
  CHECK(rms_norm(Variable(x), {}, 1e-5, at::kBFloat16).data().isnan().all().item<bool>());
}

TEST_CASE("a bias is trained beside a frozen weight", "[boundary_cases]") {
  const at::Tensor x = torch::randn({5, 7}), w = torch::randn({3, 7}), dy = torch::randn({5, 3});
  const Variable b = Variable::parameter(torch::zeros({3})),
                 c = Variable::parameter(torch::zeros({3}));
  backward(linear(Variable(x), Variable(w), b), dy);
  CHECK(b.grad().allclose(dy.sum(0), 1e-5, 1e-6));
  backward(linear_gelu(Variable(x), Variable(w), c), dy);
  const at::Tensor u = x.matmul(w.t()).requires_grad_();
  torch::gelu(u, "tanh").backward(dy);
  CHECK(c.grad().allclose(u.grad().sum(0), 1e-4, 1e-5));
}

TEST_CASE("grad() does not change an existing .grad, and backward() adds to a .grad of any layout",
          "[boundary_cases]") {
  const at::Tensor x = torch::randn({5, 3}), dy = torch::randn({5, 4}), dw = dy.t().matmul(x);
  const Variable w = Variable::parameter(torch::randn({4, 3}));
  backward(linear(Variable(x), w), dy);
  const at::Tensor once = w.grad().clone();
  CHECK(grad(linear(Variable(x), w), {w}, Variable(dy))[0].data().allclose(dw, 1e-5, 1e-5));
  REQUIRE(w.grad().defined());
  CHECK(w.grad().equal(once));
  w.leaf().grad = torch::ones({3, 4}).t();
  backward(linear(Variable(x), w), dy);
  CHECK(w.grad().allclose(dw + 1, 1e-5, 1e-5));
}

TEST_CASE("backward() does not add in place to a gradient that two inputs share",
          "[boundary_cases]") {
  const Variable a = Variable::parameter(torch::ones({2}, at::kDouble)), x = a * 1.0, y = a * 1.0;
  // x and y share the gradient of x + y, and x gets a second gradient.
  backward(sum((x + y) + x * 2.0));
  CHECK(a.grad().eq(4).all().item<bool>());
  const auto g = grad(sum(((x + y) + x * 2.0) * 1.0), {x, y});
  CHECK(g[0].data().eq(3).all().item<bool>());
  CHECK(g[1].data().eq(1).all().item<bool>());
}

TEST_CASE("a graph that saved a parameter notices an update of it", "[boundary_cases]") {
  const Variable w = Variable::parameter(torch::ones({2, 2}));
  const Variable old = sum(w * w);
  w.leaf().grad = torch::ones({2, 2});
  Optimizer(OptimConfig{}, {{.path = "w", .parameter = w, .role = Role::weight}}).step(0.1);
  CHECK_THAT(error_of([&] { backward(old); }),
             ContainsSubstring("mul: ") && ContainsSubstring("in place"));
}

TEST_CASE("stochastic rounding is the same on any number of threads, and keeps infinity and NaN",
          "[boundary_cases]") {
  const int threads = at::get_num_threads();
  const auto trained = [](int n) {
    at::set_num_threads(n);
    const Variable w = Variable::parameter(
        torch::ones({40001}).to(at::kBFloat16));  // threads' ranges begin inside Philox blocks
    Optimizer optimizer(OptimConfig{}, {{.path = "w", .parameter = w, .role = Role::bias}}, 3);
    for (int i = 0; i < 4; ++i) {
      w.leaf().grad = torch::ones({40001});
      optimizer.step(1e-3);
    }
    return w.data();
  };
  const at::Tensor one = trained(1);
  for (const int n : {2, 3}) CHECK(trained(n).equal(one));
  at::set_num_threads(threads);
  CHECK(round_stochastic(0x7f800000u, 0xffffu) == 0x7f80u);
  // If random bits were added to this NaN, the carry would reach its sign and give -0.
  CHECK(round_stochastic(0x7fffffffu, 0xffffu) == 0x7fffu);
}

TEST_CASE("working copies round ties to even", "[boundary_cases]") {
  const at::Tensor ties = torch::arange(1, 40, 2).to(at::kFloat) / 256 + 1;
  const Variable w = Variable::parameter(ties.clone());
  w.leaf().precision.copy_low(w.data(), at::kBFloat16);
  w.leaf().grad = torch::zeros(ties.sizes());
  Optimizer(OptimConfig{.kind = "sgd"}, {{.path = "w", .parameter = w, .role = Role::bias}})
      .step(0);
  CHECK(w.leaf().precision.low.equal(ties.to(at::kBFloat16)));
}

TEST_CASE("fp8_edge_blocks excludes that many blocks at each end from fp8", "[boundary_cases]") {
  GPTConfig c;
  c.n_layer = 4;
  c.n_head = 2;
  c.n_embd = 16;
  c.block_size = 8;
  c.vocab_size = 11;
  GPT model = test::make_gpt(c, 1);
  const auto params = parameters(model);
  AmpConfig amp;
  amp.dtype = "fp8";
  amp.fp8_edge_blocks = 1;
  make_fp8_layers(params, amp);
  std::set<int64_t> blocks;
  for (const auto& p : params) {
    if (p.parameter.leaf().precision.fp8) blocks.insert(p.block);
  }
  CHECK(blocks == std::set<int64_t>{1, 2});
}

TEST_CASE("norms of an empty batch give their weights and biases gradients of zero",
          "[boundary_cases]") {
  const auto parameter = [](const char* name) {
    return Variable::parameter(torch::ones({6}), name);
  };
  const std::vector<std::pair<
      std::string, std::function<Variable(const Variable&, const Variable&, const Variable&)>>>
      norms{{"layer_norm",
             [](const auto& x, const auto& w, const auto& b) { return layer_norm(x, w, b, 1e-5); }},
            {"group_norm", [](const auto& x, const auto& w,
                              const auto& b) { return group_norm(x, 2, w, b, 1e-5); }},
            {"batch_norm", [](const auto& x, const auto& w, const auto& b) {
               return batch_norm(x, w, b, 1e-5).y;
             }}};
  for (const auto& [name, norm] : norms) {
    INFO(name);
    const Variable w = parameter("weight"), b = parameter("bias");
    backward(sum(norm(Variable(torch::ones({0, 6})), w, b)));
    for (const Variable& v : {w, b}) {
      const at::Tensor& g = v.leaf().grad;
      REQUIRE(g.defined());
      CHECK(g.equal(torch::zeros({6})));
    }
  }
}

}  // namespace
