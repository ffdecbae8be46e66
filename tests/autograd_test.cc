// The engine: accumulation, sharing, freeing, hooks, modes, and graphs of any depth.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <thread>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/mode.h"
#include "tests/catch.h"

namespace {

using namespace lathe;

Variable param(at::IntArrayRef shape, double value = 1) {
  return Variable::parameter(at::full(shape, value, at::kDouble));
}

TEST_CASE("gradients accumulate over paths and over backwards", "[autograd]") {
  const Variable x = param({3}, 2);
  const Variable y = x * x + x * 3.0;  // dy/dx = 2x + 3
  backward(sum(y));
  CHECK(x.grad().eq(7).all().item<bool>());
  backward(sum(x * x));
  CHECK(x.grad().eq(11).all().item<bool>());
}

TEST_CASE("parameters that were handed one gradient do not share it", "[autograd]") {
  const Variable a = param({2}), b = param({2});
  backward(sum(a + b));
  CHECK(a.grad().const_data_ptr() != b.grad().const_data_ptr());
  backward(sum(a * 5.0));
  CHECK(a.grad().eq(6).all().item<bool>());
  CHECK(b.grad().eq(1).all().item<bool>());
}

TEST_CASE("the caller's cotangent is never written to", "[autograd]") {
  const Variable x = param({2});
  const at::Tensor dy = at::ones({2}, at::kDouble);
  backward(reshape(x, {2}), dy);
  backward(reshape(x, {2}), dy);
  CHECK(dy.eq(1).all().item<bool>());
  CHECK(x.grad().eq(2).all().item<bool>());
}

TEST_CASE("a million nodes run backward and are destroyed without recursion", "[autograd]") {
  const Variable x = param({1});
  {
    Variable y = x;
    for (int i = 0; i < 1'000'000; ++i) y = y + 1.0;
    backward(y);
    CHECK(x.grad().item<double>() == 1);
  }
  Variable never_run = x;
  for (int i = 0; i < 1'000'000; ++i) never_run = never_run * 1.0;
  never_run = Variable();
  SUCCEED("destroyed");
}

TEST_CASE("a second backward, or a saved tensor changed since, names the op", "[autograd]") {
  const Variable x = param({2}, 3);
  const Variable y = exp(x);
  backward(sum(y));
  CHECK_THAT(error_of([&] { backward(sum(y)); }), ContainsSubstring("exp: what it saved is freed"));

  const Variable z = exp(x);
  z.data().add_(1);
  CHECK_THAT(error_of([&] { backward(sum(z)); }),
             ContainsSubstring("exp: a tensor saved for backward (float64[2]) was changed in place"));
  const Variable u = mul(x, x);
  x.data().view(-1).slice(0, 0, 1).add_(1);  // through a view
  CHECK_THAT(error_of([&] { backward(sum(u)); }), ContainsSubstring("mul: a tensor saved"));

  const Variable kept = exp(x);
  backward(sum(kept), {}, /*retain=*/true);
  backward(sum(kept));
}

TEST_CASE("backward says what it can't do", "[autograd]") {
  CHECK_THAT(error_of([&] { backward(Variable(at::ones({}))); }),
             ContainsSubstring("does not depend on any parameter"));
  CHECK_THAT(error_of([&] { backward(param({2}) * 1.0); }), ContainsSubstring("more than one element"));
  CHECK_THAT(error_of([&] { backward(param({2}) * 1.0, at::ones({3}, at::kDouble)); }),
             ContainsSubstring("float64[3] for float64[2]"));
}

TEST_CASE("NoGrad records nothing and is the thread's own", "[autograd]") {
  const Variable x = param({1});
  const NoGrad no_grad;
  CHECK(!exp(x).requires_grad());
  bool elsewhere = false;
  std::thread([&] { elsewhere = exp(x).requires_grad(); }).join();
  CHECK(elsewhere);
}

TEST_CASE("hooks see and may replace gradients", "[autograd]") {
  const Variable x = param({2}), y = x * 2.0;
  double seen = 0;
  int finished = 0;
  y.register_hook([&](const at::Tensor& g) {
    seen = g.sum().item<double>();
    return g * 10;
  });
  x.leaf().after_accumulate.push_back([&](Leaf& leaf) { finished += leaf.grad.defined() ? 1 : 100; });
  backward(sum(y * y));
  CHECK(seen == 8);
  CHECK(x.grad().eq(80).all().item<bool>());
  CHECK(finished == 1);
}

TEST_CASE("a hook that gives another shape is refused", "[autograd]") {
  const Variable x = param({2}), y = x * 2.0;
  y.register_hook([](const at::Tensor& g) { return g.sum(); });
  CHECK_THAT(error_of([&] { backward(sum(y)); }),
             ContainsSubstring("a hook gave float64[] for a gradient of float64[2]"));
}

TEST_CASE("a parameter's gradient is complete as soon as its last consumer ran", "[autograd]") {
  const Variable early = param({1}), late = param({1});
  std::vector<std::string> order;
  early.leaf().after_accumulate.push_back([&](Leaf&) { order.push_back("early"); });
  late.leaf().after_accumulate.push_back([&](Leaf&) { order.push_back("late"); });
  const Variable h = early * 2.0;
  backward(h * late);
  CHECK(order == std::vector<std::string>{"late", "early"});
}

TEST_CASE("grad leaves .grad alone and gives intermediate gradients", "[autograd]") {
  const Variable x = param({2}, 3), h = x * x, unused = param({1});
  const auto g = grad(sum(h * 2.0), {h, x, unused});
  CHECK(g[0].data().eq(2).all().item<bool>());
  CHECK(g[1].data().eq(12).all().item<bool>());
  CHECK(!g[2].defined());
  CHECK(!x.grad().defined());
}

TEST_CASE("what is saved is freed as its node runs", "[autograd]") {
  const Variable x = param({4});
  Variable y;
  std::weak_ptr<Node> node;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage(c10::intrusive_ptr<c10::StorageImpl>(nullptr));
  {
    const Variable h = exp(x);
    node = h.node();
    storage = c10::weak_intrusive_ptr<c10::StorageImpl>(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(h.data().storage().unsafeGetStorageImpl()));
    y = sum(h * h);
  }
  CHECK(!storage.expired());
  backward(y);
  CHECK(storage.expired());
  CHECK(!node.expired());  // the graph itself lives as long as its root
}

}  // namespace
