// Tests of the engine: accumulation, sharing, freeing, hooks, modes, and graphs of any depth.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <thread>
#include <utility>

#include "amp/amp.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/mode.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;

Variable param(at::IntArrayRef shape, double value = 1) {
  return Variable::parameter(at::full(shape, value, at::kDouble));
}

TEST_CASE("gradients accumulate over paths and over backward passes", "[backward]") {
  const Variable x = param({3}, 2);
  const Variable y = x * x + x * 3.0;  // dy/dx = 2x + 3
  backward(sum(y));
  CHECK(x.grad().eq(7).all().item<bool>());
  backward(sum(x * x));
  CHECK(x.grad().eq(11).all().item<bool>());
}

TEST_CASE("parameters that receive the same gradient do not share its storage", "[backward]") {
  const Variable a = param({2}), b = param({2});
  backward(sum(a + b));
  CHECK(a.grad().const_data_ptr() != b.grad().const_data_ptr());
  backward(sum(a * 5.0));
  CHECK(a.grad().eq(6).all().item<bool>());
  CHECK(b.grad().eq(1).all().item<bool>());
}

TEST_CASE("backward never writes to the caller's cotangent", "[backward]") {
  const Variable x = param({2});
  const at::Tensor dy = at::ones({2}, at::kDouble);
  backward(reshape(x, {2}), dy);
  backward(reshape(x, {2}), dy);
  CHECK(dy.eq(1).all().item<bool>());
  CHECK(x.grad().eq(2).all().item<bool>());
}

TEST_CASE("300,000 nodes run backward and are destroyed without recursion", "[backward]") {
  const Variable x = param({1});
  {
    Variable y = x;
    for (int i = 0; i < 300'000; ++i) y = y + 1.0;
    backward(y);
    CHECK(x.grad().item<double>() == 1);
  }
  Variable never_run = x;
  for (int i = 0; i < 300'000; ++i) never_run = never_run * 1.0;
  never_run = Variable();
  SUCCEED("destroyed");
}

TEST_CASE("errors of a second backward and of a changed saved tensor name the op", "[backward]") {
  const Variable x = param({2}, 3);
  const Variable y = exp(x);
  backward(sum(y));
  CHECK_THAT(error_of([&] { backward(sum(y)); }),
             ContainsSubstring("exp: ") && ContainsSubstring("retain=true"));

  const Variable z = exp(x);
  z.data().add_(1);
  CHECK_THAT(error_of([&] { backward(sum(z)); }), ContainsSubstring("exp: ") &&
                                                      ContainsSubstring("float64[2]") &&
                                                      ContainsSubstring("in place"));
  const Variable u = mul(x, x);
  x.data().view(-1).slice(0, 0, 1).add_(1);  // changes x through a view
  CHECK_THAT(error_of([&] { backward(sum(u)); }),
             ContainsSubstring("mul: ") && ContainsSubstring("in place"));

  const Variable kept = exp(x);
  backward(sum(kept), {}, /*retain=*/true);
  backward(sum(kept));
}

TEST_CASE("backward refuses roots without gradients and gradients of wrong shapes", "[backward]") {
  CHECK_THAT(error_of([&] { backward(Variable(at::ones({}))); }),
             ContainsSubstring("float32[]") && ContainsSubstring("parameter"));
  CHECK_THAT(error_of([&] { backward(param({2}) * 1.0); }),
             ContainsSubstring("float64[2]") && ContainsSubstring("`dy`"));
  CHECK_THAT(error_of([&] { backward(param({2}) * 1.0, at::ones({3}, at::kDouble)); }),
             ContainsSubstring("float64[3]") && ContainsSubstring("float64[2]"));
}

/// Throws the error that a test sets, in forward or in backward. The error is one of ATen's or
/// Lathe's.
struct WrongThrower {
  static constexpr OpInfo info{.name = "wrong_thrower"};
  std::function<void()> forward_throws = [] {}, backward_throws = [] {};

  at::Tensor forward(const at::Tensor& x) const {
    forward_throws();
    return x * 1.0;
  }
  Grads<1> backward(const at::Tensor& dy, Needs<1> /*needs*/) const {
    backward_throws();
    return {dy};
  }
};

TEST_CASE("an op's error names the op, unless it has an exit code other than internal",
          "[backward]") {
  const auto atens = [] { (void)at::ones({2}).add(at::ones({3})); };
  const auto code = [](Exit exit) { return [exit] { fail(exit, "as it is"); }; };
  const auto thrown = [](const WrongThrower& op) -> std::pair<Exit, std::string> {
    try {
      backward(sum(apply(op, param({2}))));
    } catch (const Error& e) {
      return {e.code(), e.what()};
    }
    return {Exit::done, ""};
  };

  CHECK((thrown({}) == std::pair<Exit, std::string>(Exit::done, "")));
  CHECK_THAT(thrown({.forward_throws = atens}).second,
             ContainsSubstring("wrong_thrower(float64[2]): ") && ContainsSubstring("(2)") &&
                 ContainsSubstring("(3)"));
  CHECK_THAT(thrown({.backward_throws = atens}).second,
             ContainsSubstring("wrong_thrower backward: ") && ContainsSubstring("(2)") &&
                 ContainsSubstring("(3)"));

  CHECK(thrown({.forward_throws = code(Exit::internal)}).second ==
        "wrong_thrower(float64[2]): as it is");

  // An error with an exit code other than Exit::internal keeps its message.
  CHECK((thrown({.forward_throws = code(Exit::memory)}) ==
         std::pair<Exit, std::string>(Exit::memory, "as it is")));
  CHECK((thrown({.backward_throws = code(Exit::diverged)}) ==
         std::pair<Exit, std::string>(Exit::diverged, "as it is")));
}

TEST_CASE("NoGrad stops its thread, and no other thread, from recording a graph", "[backward]") {
  const Variable x = param({1});
  const NoGrad no_grad;
  CHECK(!exp(x).requires_grad());
  bool elsewhere = false;
  std::thread([&] { elsewhere = exp(x).requires_grad(); }).join();
  CHECK(elsewhere);
}

TEST_CASE("hooks see and may replace gradients", "[backward]") {
  const Variable x = param({2}), y = x * 2.0;
  double seen = 0;
  int finished = 0;
  y.register_hook([&](const at::Tensor& g) {
    seen = g.sum().item<double>();
    return g * 10;
  });
  x.register_post_accumulate_grad_hook(
      [&](Leaf& leaf) { finished += leaf.grad.defined() ? 1 : 100; });
  backward(sum(y * y));
  CHECK(seen == 8);
  CHECK(x.grad().eq(80).all().item<bool>());
  CHECK(finished == 1);
}

TEST_CASE("a hook that gives another shape is refused", "[backward]") {
  const Variable x = param({2}), y = x * 2.0;
  y.register_hook([](const at::Tensor& g) { return g.sum(); });
  CHECK_THAT(error_of([&] { backward(sum(y)); }), ContainsSubstring("hook") &&
                                                      ContainsSubstring("float64[]") &&
                                                      ContainsSubstring("float64[2]"));
}

TEST_CASE("a parameter's gradient is complete as soon as its last consumer has run", "[backward]") {
  const Variable early = param({1}), late = param({1});
  std::vector<std::string> order;
  early.register_post_accumulate_grad_hook([&](Leaf&) { order.push_back("early"); });
  late.register_post_accumulate_grad_hook([&](Leaf&) { order.push_back("late"); });
  const Variable h = early * 2.0;
  backward(h * late);
  CHECK(order == std::vector<std::string>{"late", "early"});
}

TEST_CASE("grad() calls no hook of a Variable whose gradient it does not compute", "[backward]") {
  const Variable x = param({2}), w = param({2});
  int calls = 0;
  w.register_hook([&](const at::Tensor&) {
    ++calls;
    return at::Tensor();
  });
  const auto f = [&] { return sum(w * x + w + (w - x) + w * 2.0); };
  grad(f(), {x});
  grad(f(), {x}, {}, /*create_graph=*/true);
  CHECK(calls == 0);
  grad(f(), {x, w});
  CHECK(calls == 1);
}

TEST_CASE("grad() leaves .grad unchanged and returns intermediate gradients", "[backward]") {
  const Variable x = param({2}, 3), h = x * x, unused = param({1});
  const auto g = grad(sum(h * 2.0), {h, x, unused});
  CHECK(g[0].data().eq(2).all().item<bool>());
  CHECK(g[1].data().eq(12).all().item<bool>());
  CHECK(!g[2].defined());
  CHECK(!x.grad().defined());
}

TEST_CASE("saved tensors are freed as their node runs", "[backward]") {
  const Variable x = param({4});
  Variable y;
  std::weak_ptr<Node> node;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage(c10::intrusive_ptr<c10::StorageImpl>(nullptr));
  {
    const Variable h = exp(x);
    node = h.node();
    storage = c10::weak_intrusive_ptr<c10::StorageImpl>(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            h.data().storage().unsafeGetStorageImpl()));
    y = sum(h * h);
  }
  CHECK(!storage.expired());
  backward(y);
  CHECK(storage.expired());
  CHECK(!node.expired());  // the graph itself lives as long as its root
}

TEST_CASE("under autocast two graphs share a cast of a weight, and each runs backward",
          "[backward]") {
  const Variable w = Variable::parameter(at::randn({4, 4})), x(at::randn({2, 4}));
  const Autocast autocast(at::kBFloat16);
  const Variable first = sum(linear(x, w)), second = sum(linear(x, w) * 2.0);
  backward(first);
  const at::Tensor once = w.grad().clone();
  backward(second);
  CHECK((w.grad() - once * 3.0).abs().max().item<double>() <=
        0x1p-6 * once.abs().max().item<double>());
  const auto g = grad(sum(linear(x, w)), {w});
  CHECK(g[0].data().equal(once));
  backward(sum(linear(x, w)));  // grad() left no state behind that breaks backward()
}

TEST_CASE("nodes without saved tensors can run backward twice; nodes with saved tensors cannot",
          "[backward]") {
  const Variable x = param({2, 2}, 3), h = reshape(x * 2.0 + 1.0, {4});
  backward(sum(h));
  backward(sum(h * 3.0));
  CHECK(x.grad().eq(8).all().item<bool>());
  const Variable saved = exp(x);
  backward(sum(saved));
  CHECK_THAT(error_of([&] { backward(sum(saved)); }),
             ContainsSubstring("exp: ") && ContainsSubstring("retain=true"));
}

TEST_CASE("grad() runs and frees only the nodes between root and xs, or retains them on request",
          "[backward]") {
  const Variable x = param({2}, 0.5), other = param({2}, 0.5);
  const Variable a = exp(x), b = exp(other), y = sum(a * b);
  int ran = 0;
  b.register_hook([&](const at::Tensor&) {
    ++ran;
    return at::Tensor();
  });
  const auto kept = grad(y, {x}, {}, /*create_graph=*/false, /*retain=*/true);
  const auto again = grad(y, {x});
  CHECK(ran == 0);
  CHECK(again[0].data().equal(kept[0].data()));
  CHECK_THAT(error_of([&] { grad(y, {x}); }), ContainsSubstring("retain=true"));
  backward(sum(b));  // the branch to `other` was not freed
  CHECK(other.grad().defined());
  CHECK(!x.grad().defined());
  CHECK(grad(a, {a}, Variable(at::ones({2}, at::kDouble)))[0].data().eq(1).all().item<bool>());
}

TEST_CASE("grad() with create_graph records a graph even within NoGrad", "[backward]") {
  const Variable x = param({3}, 0.5);
  const Variable y = sum(exp(x));
  const NoGrad no_grad;
  const Variable dx = grad(y, {x}, {}, /*create_graph=*/true)[0];
  CHECK(dx.requires_grad());
  CHECK(!mode().grad);
}

TEST_CASE(
    "gradients and hooks are correct for an op with several outputs, some of which are unused",
    "[backward]") {
  const Variable x = Variable::parameter(at::randn({3, 4}, at::kDouble));
  const auto parts = split(x, {1, 3}, 1);
  double seen = 0;
  parts[1].register_hook([&](const at::Tensor& g) {
    seen = g.sum().item<double>();
    return g * 2.0;
  });
  const auto g = grad(sum(parts[0] * 5.0) + sum(parts[1]), {x, parts[0], parts[1]});
  CHECK(seen == 9);
  CHECK(g[0].data().slice(1, 0, 1).eq(5).all().item<bool>());
  CHECK(g[0].data().slice(1, 1, 4).eq(2).all().item<bool>());
  CHECK(g[1].data().eq(5).all().item<bool>());
  CHECK(g[2].data().eq(2).all().item<bool>());
  backward(sum(unbind(x, 0)[1]));
  CHECK(x.grad().sum().item<double>() == 4);
  CHECK(x.grad().select(0, 1).eq(1).all().item<bool>());
  const auto [values, places] = topk(x, 2);
  CHECK(places.scalar_type() == at::kLong);
  CHECK(values.data().equal(x.data().gather(1, places)));
  CHECK_THAT(error_of([&] { split(x, {1, 2}, 1); }), ContainsSubstring("split(float64[3,4])"));
}

TEST_CASE("a long chain held by hooks is destroyed without recursion", "[backward]") {
  Variable x = param({1});
  for (int i = 0; i < 200'000; ++i) {
    const Variable next = param({1});
    next.register_hook([x](const at::Tensor&) { return at::Tensor(); });
    if (i % 2 == 0) next.register_post_accumulate_grad_hook([x](Leaf&) {});
    x = next;
  }
  x = Variable();
  SUCCEED("destroyed");
}

TEST_CASE("sizes that do not fit are errors, and empty inputs are not", "[backward]") {
  const auto t = [](at::IntArrayRef shape) { return Variable::parameter(at::ones(shape)); };
  CHECK_THAT(error_of([&] { attention(t({1, 2, 12}), 0); }),
             ContainsSubstring("attention(float32[1,2,12]): 0 heads"));
  CHECK_THAT(error_of([&] { attention(t({1, 2, 0}), 1); }),
             ContainsSubstring("attention(float32[1,2,0])") && ContainsSubstring("[B, T, 3C]"));
  CHECK_THAT(error_of([&] { unsqueeze(t({2}), 5); }),
             ContainsSubstring("unsqueeze(float32[2]): dim 5") && ContainsSubstring("[-2, 2)"));
  CHECK_THAT(error_of([&] { rms_norm(t({2, 0}), {}); }),
             ContainsSubstring("rms_norm(float32[2,0])") && ContainsSubstring("last dim"));
  CHECK_THAT(error_of([&] { layer_norm(t({2, 0}), {}, {}); }),
             ContainsSubstring("layer_norm(float32[2,0])") && ContainsSubstring("last dim"));

  // Test attention without positions, and without samples.
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{1, 0, 12}, {0, 3, 12}}) {
    const Variable x = t(shape), y = attention(x, 2);
    CHECK(y.size(2) == 4);
    backward(sum(y));
    CHECK(x.grad().sizes() == at::IntArrayRef(shape));
  }

  const Variable empty = t({3, 0}), y = swiglu(empty);
  backward(sum(y));
  CHECK(y.sizes() == empty.sizes());

  // Test linear layers without input features, and without output features.
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{0, 4}, {4, 0}}) {
    const Variable x = t({2, 3, in}), w = t({out, in}), b = t({out});
    const Variable z = linear(x, w, b);
    CHECK(z.sizes().vec() == std::vector<int64_t>{2, 3, out});
    backward(sum(z));
    CHECK(z.data().sum().item<double>() == 6.0 * static_cast<double>(out) * (in == 0 ? 1 : 0));
    CHECK(x.grad().sizes() == x.sizes());
    CHECK(w.grad().sizes() == w.sizes());
    CHECK(b.grad().sum().item<double>() == 6.0 * static_cast<double>(out));
  }
  // With features, the sum of the result is not zero.
  CHECK(linear(t({2, 3, 5}), t({4, 5}), t({4})).data().sum().item<double>() == 144);
}

TEST_CASE("means of float16 are summed in float32", "[backward]") {
  const Variable x = Variable::parameter(at::ones({70000}, at::kHalf)), y = mean(x);
  CHECK(y.item() == 1);
  CHECK(y.dtype() == at::kHalf);
  backward(y * 70000.0 * 0.5);
  CHECK(x.grad()[0].item<double>() == Approx(0.5).epsilon(1e-2));
}

TEST_CASE("ignored rows contribute nothing to loss and gradients, even if they hold NaN",
          "[backward]") {
  const at::Tensor logits = at::zeros({2, 3});
  logits[0][0] = -INFINITY;
  logits[1][0] = 1;
  logits[1][1] = 2;
  logits[1][2] = 3;
  const at::Tensor targets = at::ones({2}, at::kLong);
  targets[0] = -100;
  for (const bool nan : {false, true}) {
    if (nan) logits[0][1] = NAN;
    const Variable x = Variable::parameter(logits.clone()), loss = cross_entropy(x, targets);
    CHECK(loss.item() == Approx(1.4076).epsilon(1e-4));
    backward(loss);
    CHECK(x.grad()[0].eq(0).all().item<bool>());
    CHECK(x.grad()[1].sum().item<double>() == Approx(0).margin(1e-6));
  }
  CHECK(cross_entropy(Variable(logits), at::full({2}, -100, at::kLong)).item() == 0);
}

}  // namespace
