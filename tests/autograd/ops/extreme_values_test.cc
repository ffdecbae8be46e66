// Tests of values and gradients at infinities, zeros and far tails, and of inputs that must be
// refused.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "autograd/engine.h"
#include "autograd/ops.h"
#include "nn/layers/linear.h"
#include "nn/models/model.h"
#include "optim/optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/messages.h"

namespace {

using namespace lathe;
using lathe::test::is_sentence;
using lathe::test::message_of;

TEST_CASE("invalid inputs are refused with an error message that is a complete sentence",
          "[extreme_values]") {
  const auto ones = [](at::IntArrayRef sizes) { return Variable::parameter(torch::ones(sizes)); };

  const std::vector<std::pair<const char*, std::function<void()>>> refused{
      {"squeeze of one dim twice", [&] { squeeze(ones({1, 2}), {0, 0}); }},
      {"squeeze of one dim twice, once from the end", [&] { squeeze(ones({1, 2}), {0, -2}); }},
      {"sum over one dim twice", [&] { sum(ones({1, 2}), {1, 1}); }},
      {"flatten from a dim that is not there", [&] { flatten(ones({}), 1); }},
      {"instance_norm of one element", [&] { instance_norm(ones({2, 3, 1})); }},
      {"group_norm of one value a group", [&] { group_norm(ones({2, 3}), 3); }},
      {"max_pool2d of a window that lies in the padding",
       [&] { max_pool2d(ones({1, 1, 2, 2}), 2, lathe::Pair(1), 1, 3); }},
      {"interpolate_by infinity",
       [&] { interpolate_by(ones({1, 1, 2, 2}), std::numeric_limits<double>::infinity(), 1); }},
      {"interpolate_by a factor that is too large",
       [&] { interpolate_by(ones({1, 1, 2, 2}), 1e30, 1); }},
      {"a float64 loss in Optimizer::step",
       [] {
         Linear layer(3, 2, true);
         Optimizer optimizer(OptimConfig(), parameters(layer));
         const Variable loss = sum(layer(Variable(torch::ones({1, 3}))));
         backward(loss);
         optimizer.step(0.1, {.loss = loss.data().to(at::kDouble)});
       }},
  };

  for (const auto& [what, run] : refused) {
    INFO(what);
    const std::string message = message_of(run);
    INFO(message);
    CHECK(is_sentence(message));
  }
}

/// Returns the gradients of sum(f(x)) by Lathe and by LibTorch.
std::pair<at::Tensor, at::Tensor> both_gradients(
    const std::function<Variable(const Variable&)>& ours,
    const std::function<at::Tensor(const at::Tensor&)>& theirs, const at::Tensor& x) {
  const Variable v = Variable::parameter(x.clone());
  backward(sum(ours(v)));
  const at::Tensor t = x.clone().requires_grad_();
  theirs(t).sum().backward();
  return {v.grad(), t.grad()};
}

TEST_CASE("gradients at infinities and zeros, or without degrees of freedom, match LibTorch's",
          "[extreme_values]") {
  const double infinite = std::numeric_limits<double>::infinity();
  const auto agree = [](const std::pair<at::Tensor, at::Tensor>& g) {
    CHECK(g.first.allclose(g.second, 0, 0, /*equal_nan=*/true));
  };

  for (const auto& values : std::vector<std::vector<double>>{{infinite, 2, 3},
                                                             {0, infinite, 3},
                                                             {2, 0, infinite},
                                                             {0, 0, 3},
                                                             {0, infinite, 0},
                                                             {-infinite, 2, infinite}}) {
    const at::Tensor x = torch::tensor(values, at::kDouble);
    INFO(x);
    agree(both_gradients([](const Variable& v) { return prod(v); },
                         [](const at::Tensor& t) { return t.prod(); }, x));
    agree(both_gradients([](const Variable& v) { return prod(v, 0); },
                         [](const at::Tensor& t) { return t.prod(0); }, x));
    if (values[0] == 0 && values[2] == 0) continue;  // PyTorch divides infinity by infinity
    agree(both_gradients([](const Variable& v) { return cumprod(v, 0); },
                         [](const at::Tensor& t) { return t.cumprod(0); }, x));
  }

  // A correction of at least the number of elements leaves no degrees of freedom.
  for (const at::Tensor& x : {torch::full({}, 3.0, at::kDouble), torch::arange(3, at::kDouble)}) {
    for (const double correction : {0.0, 1.0, 2.0, 3.0, 4.0}) {
      INFO(x << ", correction " << correction);
      agree(both_gradients(
          [&](const Variable& v) { return var(v, {}, correction); },
          [&](const at::Tensor& t) { return t.var(std::nullopt, at::Scalar(correction)); }, x));
      agree(both_gradients(
          [&](const Variable& v) { return lathe::std(v, {}, correction); },
          [&](const at::Tensor& t) { return t.std(std::nullopt, at::Scalar(correction)); }, x));
    }
  }
}

TEST_CASE("SwiGLU and its gradient are zero far below zero, and NaN at minus infinity",
          "[extreme_values]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto gradients = [dtype](double gate) {
      const Variable x = Variable::parameter(torch::full({2, 64}, 1e30, dtype));
      const Variable w = Variable::parameter(torch::full({64, 64}, gate / 64e30, dtype));
      const Variable up = Variable::parameter(torch::full({64, 64}, 1.0 / 64, dtype));
      const Variable y = linear_swiglu(x, w, up);
      std::vector<at::Tensor> all{y.data()};
      for (const Variable& g : grad(y, {x, w, up}, Variable(torch::ones({2, 64}, dtype))))
        all.push_back(g.data());
      return all;
    };

    for (const double gate : {-1e3, -2.3e30}) {
      INFO(gate);
      for (const at::Tensor& t : gradients(gate)) CHECK(t.eq(0).all().item<bool>());
    }

    const at::Tensor x = torch::tensor(
        {-std::numeric_limits<double>::infinity(), -1e30, -101.0, -99.0, -50.0, 1.0, 0.0, 0.0},
        at::kDouble);
    // swiglu takes the gates from the first half of a row; the second half is 1 here.
    const at::Tensor packed = torch::stack({x, torch::ones({8}, at::kDouble)}, 0).reshape({1, 16});
    const Variable v = Variable::parameter(packed.to(dtype));
    const Variable y = swiglu(v);
    backward(y, torch::ones({1, 8}, dtype));

    CHECK(y.data()[0][0].isnan().item<bool>());
    CHECK(v.grad()[0][0].isnan().item<bool>());
    CHECK(y.data()[0].slice(0, 1).allclose((x * x.sigmoid()).slice(0, 1).to(dtype), 1e-2, 1e-30));
    CHECK(v.grad()[0].slice(0, 1, 3).eq(0).all().item<bool>());
  }
}

TEST_CASE(
    "logsigmoid's second derivative is exact in both tails, and elu's is 0 at 0, as in PyTorch",
    "[extreme_values]") {
  const at::Tensor x = torch::tensor({-20.0, -8.5, -1.0, 0.0, 1.0, 8.5, 20.0}, at::kFloat);
  const auto second = [](auto f, const at::Tensor& at) {
    const Variable v = Variable::parameter(at.clone());
    const Variable first = grad(sum(f(v)), {v}, {}, /*create_graph=*/true)[0];
    return grad(sum(first), {v})[0].data();
  };
  const at::Tensor exact = x.to(at::kDouble), s = exact.sigmoid();
  // The allowed error is a few float32 roundings, relative to each derivative.
  CHECK(second([](const Variable& v) { return logsigmoid(v); }, x)
            .to(at::kDouble)
            .allclose(-s * (-exact).sigmoid(), 1e-6, 0));
  CHECK(second([](const Variable& v) { return elu(v, 1.5); }, torch::zeros({1})).item<double>() ==
        0);
}

TEST_CASE("group_norm and instance_norm take a bias without a weight", "[extreme_values]") {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Variable x = Variable::parameter(torch::arange(24).to(dtype).reshape({2, 4, 3}).sin());
    const Variable bias = Variable::parameter(torch::zeros({4}, dtype));
    const at::Tensor dy = torch::arange(24).to(dtype).reshape({2, 4, 3}).cos();
    const Variable one(torch::ones({4}, dtype));
    const std::vector<std::pair<Variable, Variable>> without_and_with{
        {group_norm(x, 2, {}, bias), group_norm(x, 2, one, bias)},
        {instance_norm(x, {}, bias), instance_norm(x, one, bias)}};
    for (const auto& [y, expected] : without_and_with) {
      CHECK(y.data().equal(expected.data()));
      const auto grads = grad(y, {x, bias}, Variable(dy));
      const auto expected_grads = grad(expected, {x, bias}, Variable(dy));
      for (size_t i = 0; i < grads.size(); ++i)
        CHECK(grads[i].data().equal(expected_grads[i].data()));
      CHECK(grads[1].data().allclose(dy.sum(at::IntArrayRef{0, 2}), 1e-2, 1e-2));
    }
  }
}

}  // namespace
