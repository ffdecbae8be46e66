// Tests that Variables behave as a PyTorch user expects: operators, indexing, in-place arithmetic,
// comparisons, printing, construction, freezing, removal of hooks.

#include <sstream>

#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "core/mode.h"
#include "nn/layers.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;

Variable param(std::initializer_list<int64_t> sizes) {
  return randn(sizes, 3, at::kDouble).requires_grad_();
}
std::string text_of(const Variable& v) {
  std::ostringstream out;
  out << v;
  return out.str();
}

/// Calls `ours`, and `theirs` in LibTorch, with a, b and a constant tensor. Compares the results
/// and the gradients.
template <class Ours, class Theirs>
void agrees(Ours&& ours, Theirs&& theirs) {
  const at::Tensor a = torch::linspace(0.5, 2, 6, at::kDouble).view({2, 3}),
                   b = torch::linspace(-2, -0.25, 6, at::kDouble).view({2, 3}),
                   t = torch::full({3}, 1.5, at::kDouble);
  const Variable va = Variable::parameter(a.clone()), vb = Variable::parameter(b.clone());
  const at::Tensor ta = a.clone().requires_grad_(), tb = b.clone().requires_grad_();
  const Variable y = ours(va, vb, t);
  const at::Tensor z = theirs(ta, tb, t);
  CHECK((y.data() - z).abs().max().item<double>() < 1e-14);
  sum(y * y).backward();
  (z * z).sum().backward();
  const auto same = [](const Variable& v, const at::Tensor& w) {
    const at::Tensor g = w.grad().defined() ? w.grad() : torch::zeros_like(w);
    CHECK(((v.grad().defined() ? v.grad() : torch::zeros_like(w)) - g).abs().max().item<double>() <
          1e-12);
  };
  same(va, ta);
  same(vb, tb);
}

TEST_CASE("arithmetic with numbers and tensors on either side agrees with LibTorch", "[variable]") {
  agrees([](auto& a, auto&, auto&) { return 1.0 / a; },
         [](auto& a, auto&, auto&) { return 1.0 / a; });
  agrees([](auto& a, auto&, auto&) { return 2 - a / 3; },
         [](auto& a, auto&, auto&) { return 2 - a / 3; });
  agrees([](auto& a, auto& b, auto& t) { return (a + t) * (t + b); },
         [](auto& a, auto& b, auto& t) { return (a + t) * (t + b); });
  agrees([](auto& a, auto& b, auto& t) { return (t - a) - (b - t); },
         [](auto& a, auto& b, auto& t) { return (t - a) - (b - t); });
  agrees([](auto& a, auto& b, auto& t) { return t * a + b * t + t / a + b / t; },
         [](auto& a, auto& b, auto& t) { return t * a + b * t + t / a + b / t; });
}

TEST_CASE("+= in a graph makes a new Variable with the right gradients", "[variable]") {
  agrees(
      [](auto& a, auto& b, auto& t) {
        Variable y = a * 2;
        y += b;
        y -= t;
        y *= a;
        y /= 3;
        y += 1;
        return y;
      },
      [](auto& a, auto& b, auto& t) { return ((a * 2 + b - t) * a) / 3 + 1; });

  // Other handles and saved tensors keep the previous values.
  const Variable x = param({3});
  Variable y = exp(x);
  const Variable before = y;
  const at::Tensor values = y.data().clone();
  y += 1;
  CHECK(before.data().equal(values));
  sum(before * y).backward();
  CHECK((x.grad() - (values * (2 * values + 1))).abs().max().item<double>() < 1e-12);

  // A constant becomes part of a graph if a result of the graph is added to it.
  Variable total = zeros({}, at::kDouble);
  total += sum(x);
  CHECK(total.requires_grad());
}

TEST_CASE(
    "in-place arithmetic outside a graph changes the values for every handle, and graphs notice",
    "[variable]") {
  Variable c = arange(6);
  const Variable other = c, view = c[Slice{2, 4}];
  c *= 2;
  c[0] += 10;
  CHECK(other.data().equal(torch::tensor({10.f, 2.f, 4.f, 6.f, 8.f, 10.f})));
  CHECK(view.data().equal(torch::tensor({4.f, 6.f})));

  // The graph of y has saved w, and w is changed before the backward pass.
  Variable w = param({3});
  const Variable y = sum(w * w);
  {
    const NoGrad guard;
    w -= ones({3}, at::kDouble);
    w /= 2;
  }
  CHECK(w.as_leaf() != nullptr);
  CHECK_THAT(error_of([&] { y.backward(); }),
             ContainsSubstring("mul: ") && ContainsSubstring("in place"));
  sum(w).backward();  // a new graph uses the new values without an error

  // Arithmetic that would replace a parameter, or change a temporary Variable, is an error.
  CHECK_THAT(error_of([&] { w += 1; }),
             ContainsSubstring("parameter") && ContainsSubstring("NoGrad"));
  CHECK_THAT(error_of([&] { exp(w)[0] += 1; }), ContainsSubstring("part of float64[]"));
  CHECK_THAT(error_of([&] { c += ones({7}); }),
             ContainsSubstring("in-place arithmetic(float32[6], float32[7])"));
}

static_assert(!std::is_assignable_v<Variable&&, Variable>, "x[0] = y must not compile");

TEST_CASE("indexing and its gradients agree with LibTorch", "[variable]") {
  using torch::indexing::None;
  using TorchSlice = torch::indexing::Slice;

  agrees([](auto& a, auto&, auto&) { return a[1] * a[-2]; },
         [](auto& a, auto&, auto&) { return a[1] * a[-2]; });
  agrees([](auto& a, auto&, auto&) { return a.index({Slice{}, Slice{1}}); },
         [](auto& a, auto&, auto&) { return a.index({TorchSlice(), TorchSlice(1, None)}); });
  agrees([](auto& a, auto&, auto&) { return a.index({1, Slice{0, -1}}); },
         [](auto& a, auto&, auto&) { return a.index({1, TorchSlice(0, -1)}); });
  agrees([](auto& a, auto&, auto&) { return a.index({Slice{.step = 2}, 0}); },
         [](auto& a, auto&, auto&) { return a.index({TorchSlice(None, None, 2), 0}); });

  const at::Tensor ids = torch::tensor({1, 1, 0}, at::kLong),
                   mask = torch::tensor({true, false, true});
  agrees([&](auto& a, auto& b, auto&) { return a[ids] * b[ids]; },
         [&](auto& a, auto& b, auto&) { return a.index({ids}) * b.index({ids}); });
  agrees([&](auto& a, auto&, auto&) { return a.index({0, mask}); },
         [&](auto& a, auto&, auto&) { return a.index({0, mask}); });
  agrees([&](auto& a, auto&, auto&) { return a.index({ids, ids}); },
         [&](auto& a, auto&, auto&) { return a.index({ids, ids}); });
  agrees([&](auto& a, auto& b, auto&) { return b[a > 1]; },
         [&](auto& a, auto& b, auto&) { return b.index({a > 1}); });

  // Errors name the op and the tensor.
  const Variable x = zeros({2, 3});
  CHECK_THAT(error_of([&] { x[2]; }), ContainsSubstring("select(float32[2,3]): index 2") &&
                                          ContainsSubstring("dim 0") &&
                                          ContainsSubstring("size 2"));
  CHECK_THAT(error_of([&] { x[torch::tensor({5}, at::kLong)]; }),
             ContainsSubstring("index(float32[2,3]): "));
  CHECK_THAT(error_of([&] { x[torch::tensor({0.5})]; }),
             ContainsSubstring("index(float32[2,3]): ") && ContainsSubstring("int64") &&
                 ContainsSubstring("bool"));
  CHECK_THAT(error_of([&] { x.index({0, 0, 0}); }), ContainsSubstring("select(float32[])"));
  CHECK_THAT(error_of([&] { x.index({0, Slice{}, Slice{}}); }),
             ContainsSubstring("index: float32[2,3]") && ContainsSubstring("3 indices"));
}

TEST_CASE("a tensor is a constant where a Variable is expected, and tensors keep ATen's operators",
          "[variable]") {
  const at::Tensor t = torch::tensor({1.f, 2.f});
  const Variable constant = t, x = tensor({3, 4}).requires_grad_();
  CHECK(constant.data().is_same(t));
  CHECK_FALSE(constant.requires_grad());
  CHECK(mse_loss(t, x).item() == 4);
  CHECK(lathe::sum(t).item() == 3);
  static_assert(std::is_same_v<decltype(t * 2.0), at::Tensor>);
  static_assert(std::is_same_v<decltype(2 - t), at::Tensor>);
  static_assert(std::is_same_v<decltype(t + t), at::Tensor>);
  static_assert(std::is_same_v<decltype(t + x), Variable>);
  static_assert(std::is_same_v<decltype(1 / x), Variable>);
  static_assert(!std::is_convertible_v<Variable, at::Tensor>);  // the Variable would lose its graph
  at::Tensor own = t * 2.0;
  own += 1;
  own *= t;
  CHECK(own.equal(torch::tensor({3.f, 10.f})));

  backward(sum(t * x));
  CHECK(x.grad().equal(t));
}

TEST_CASE("comparisons give bool tensors", "[variable]") {
  const Variable x = tensor({1, 2, 3}).requires_grad_(), y = tensor({3, 2, 1});
  const auto is = [](const at::Tensor& t, bool a, bool b, bool c) {
    return t.equal(torch::tensor({a, b, c}));
  };
  CHECK(is(x < y, true, false, false));
  CHECK(is(x <= 2, true, true, false));
  CHECK(is(2 < x, false, false, true));
  CHECK(is(x >= y.data(), false, true, true));
  CHECK(is(y.data() > x, true, false, false));
  CHECK(is(2 >= x, true, true, false));
  CHECK(is(x == y, false, true, false));
  CHECK(is(2 != x, true, false, true));
  CHECK_THAT(error_of([&] { (void)(x == zeros({2})); }),
             ContainsSubstring("comparison(float32[3], float32[2])"));
}

TEST_CASE("integers stay integers in arithmetic and comparisons with integers", "[variable]") {
  // float32 can't represent 2^24 + 1.
  constexpr int64_t n = (1 << 24) + 1;
  const at::Tensor t = at::tensor({n - 1, n}, at::kLong);
  Variable x(t);
  CHECK((x == n).equal(torch::tensor({false, true})));
  CHECK((n > x).equal(torch::tensor({true, false})));

  const auto check = [](const Variable& ours, const at::Tensor& wanted) {
    CHECK(ours.dtype() == wanted.scalar_type());
    CHECK(ours.data().equal(wanted));
  };
  check(x + 1, t + 1);
  check(1 + x, t + 1);
  check(x - 2, t - 2);
  check(2 - x, at::rsub(t, 2));
  check(x * 3, t * 3);
  check(-x, -t);
  check(neg(x), -t);
  check(x / 2, t / 2);
  check(x * 0.5, t * 0.5);
  check(Variable(t.to(at::kInt)) + 1, t.to(at::kInt) + 1);
  check(Variable(t.gt(n - 1)) + 1, t.gt(n - 1) + 1);
  x += 1;
  check(x, at::tensor({n, n + 1}, at::kLong));
  check(tensor({0.5, 1}) + 1, at::tensor({1.5F, 2.0F}));
  check(where(t.gt(n - 1), Variable(t), 0.5), at::where(t.gt(n - 1), t, 0.5));
  check(where(t.gt(n - 1), Variable(t), 2), at::where(t.gt(n - 1), t, 2));
  check(where(t.gt(n - 1), Variable(t), INFINITY), at::where(t.gt(n - 1), t, INFINITY));

  for (const at::Tensor& not_floating : {t, t.eq(n)})
    CHECK_THAT(error_of([&] { mean(Variable(not_floating)); }), ContainsSubstring("mean"));
  const Variable none(at::zeros({0, 3}));
  check(Variable(argmax(none, 1)), none.data().argmax(1));
  check(Variable(argmin(none, -1, true)), none.data().argmin(-1, true));
  CHECK(!error_of([&] { argmax(none, 0); }).empty());
  CHECK(!error_of([&] { argmin(none); }).empty());
}

TEST_CASE("a Variable prints its values, dtype, shape and origin", "[variable]") {
  const Variable x =
      Variable::parameter(torch::tensor({{1.f, -2.5f}, {100.f, 1e-7f}}), "layer.weight");
  CHECK(text_of(x) == "[[    1,  -2.5],\n [  100, 1e-07]] float32[2,2], parameter layer.weight");
  CHECK(text_of(x * 2) == "[[    2,    -5],\n [  200, 2e-07]] float32[2,2] from mul_scalar");
  CHECK(text_of(tensor(3)) == "3 float32[]");
  CHECK(text_of(Variable(torch::tensor({3, 14}, at::kLong))) == "[ 3, 14] int64[2]");
  CHECK(text_of(Variable(torch::tensor({true, false}))) == "[ true, false] bool[2]");
  CHECK(text_of(Variable()) == "undefined");
  CHECK(text_of(zeros({0, 2})) == "[] float32[0,2]");
  CHECK(text_of(tensor({INFINITY, NAN}, at::kDouble)) == "[inf, nan] float64[2]");
  CHECK(text_of(arange(2000)) == "[   0,    1,    2, ..., 1997, 1998, 1999] float32[2000]");
  CHECK(text_of(Variable(torch::empty({2}, at::kMeta))) == "without values, float32[2]");
}

TEST_CASE("Variables are made from numbers, shapes, ranges and seeds", "[variable]") {
  CHECK(zeros({2, 3}).data().equal(torch::zeros({2, 3})));
  CHECK(ones({2}, at::kDouble).data().equal(torch::ones({2}, at::kDouble)));
  CHECK(full({2}, 7, at::kLong).data().equal(torch::full({2}, 7, at::kLong)));
  CHECK(arange(4).data().equal(torch::arange(4, at::kFloat)));
  CHECK(arange(1, 0, -0.25).data().equal(torch::arange(1, 0, -0.25, at::kFloat)));
  CHECK(linspace(-1, 1, 5).data().equal(torch::linspace(-1, 1, 5)));

  CHECK(tensor({{1, 2}, {3, 4}, {5, 6}})
            .data()
            .equal(torch::tensor({{1.f, 2.f}, {3.f, 4.f}, {5.f, 6.f}})));
  CHECK(
      tensor({{{1, 2}}}, at::kLong).data().equal(torch::tensor({1, 2}, at::kLong).view({1, 1, 2})));
  CHECK(tensor({1}).sizes() == at::IntArrayRef{1});
  CHECK(tensor(2.5, at::kDouble).data().equal(torch::tensor(2.5, at::kDouble)));
  CHECK(tensor({}).sizes() == at::IntArrayRef{0});

  const at::Tensor ids = torch::tensor({{1, 0}, {2, 1}}, at::kLong);
  CHECK(lathe::one_hot(ids, 3).data().equal(torch::one_hot(ids, 3).to(at::kFloat)));

  // The same seed gives the same values, and another seed gives other values.
  const Variable a = randn({100, 100}, 1), b = randn({100, 100}, 1), c = randn({100, 100}, 2);
  CHECK(a.data().equal(b.data()));
  CHECK(!a.data().equal(c.data()));
  CHECK(std::abs(a.data().mean().item<double>()) < 0.04);  // four standard deviations
  CHECK(a.data().std().item<double>() == Approx(1).margin(0.03));

  CHECK_THAT(error_of([&] { lathe::one_hot(ids, 2); }),
             ContainsSubstring("one_hot: int64[2,2]") && ContainsSubstring("[0, 2)"));
  CHECK_THAT(error_of([&] { lathe::one_hot(torch::tensor({-1}, at::kLong), 2); }),
             ContainsSubstring("one_hot: int64[1]") && ContainsSubstring("[0, 2)"));
  CHECK_THAT(error_of([] { tensor({{1, 2}, {3}}); }),
             ContainsSubstring("tensor: ") && ContainsSubstring("[2] and [1]"));
  CHECK_THAT(error_of([] { arange(0, 1, -1); }), ContainsSubstring("arange: ") &&
                                                     ContainsSubstring("step of -1") &&
                                                     ContainsSubstring("from 0 to 1"));
}

TEST_CASE("a frozen parameter gets no gradient, and can be trained again", "[variable]") {
  Variable w = param({2}), v = param({2});
  const Variable other = w, early = sum(w * v);
  w.requires_grad_(false);
  CHECK(!other.requires_grad());
  CHECK(!is_trained(other));
  early.backward();  // this graph was recorded before w was frozen
  CHECK(!w.grad().defined());
  CHECK(v.grad().defined());

  const Variable y = sum(w * v);
  y.backward();
  CHECK(!w.grad().defined());
  CHECK(!(w * w).requires_grad());

  w.requires_grad_(true);
  sum(w * v).backward();
  CHECK(w.grad().equal(v.data()));
  w.requires_grad_(false);  // drops w's gradient, so that no optimizer uses it
  CHECK(!w.grad().defined());

  // The result of an op is not a parameter, so it cannot be frozen.
  CHECK_THAT(error_of([&] {
               Variable z = v * 2;
               z.requires_grad_(false);
             }),
             ContainsSubstring("requires_grad_: float64[2]") && ContainsSubstring("mul_scalar"));

  Variable constant = ones({2});
  constant.requires_grad_();
  CHECK(constant.as_leaf() != nullptr);
}

TEST_CASE("a cached cast passes no gradient to a parameter that was frozen after the cast",
          "[variable]") {
  Variable w = Variable::parameter(torch::ones({2, 2}));
  const Variable x = Variable::parameter(torch::ones({1, 2}));
  const auto loss = [&] { return sum(linear(x, w)); };
  ModeGuard guard;
  mode().compute = at::kBFloat16;
  mode().cache_casts = true;
  CHECK(loss().requires_grad());
  w.requires_grad_(false);
  CHECK(!linear(ones({1, 2}), w).requires_grad());
  loss().backward();
  CHECK(!w.grad().defined());
  CHECK(x.grad().defined());
  clear_cast_cache();
}

struct LinearPair {
  Linear a{2, 2, true}, b{2, 2, true};
  void visit(Visit& v) {
    v("a", a);
    v("b", b);
  }
};

TEST_CASE("parameters are frozen by pattern", "[variable]") {
  LinearPair model;
  CHECK(freeze(model, "a.*") == 2);
  CHECK(trained_parameters(model).size() == 2);
  CHECK(parameters(model).size() == 4);
  sum(model.b(model.a(ones({1, 2})))).backward();
  CHECK(!model.a.weight.grad().defined());
  CHECK(model.b.weight.grad().defined());
  move_to(model, at::kCPU, at::kDouble);
  CHECK(trained_parameters(model).size() == 2);
  CHECK(freeze(model, "*.bias", false) == 2);
  CHECK(trained_parameters(model).size() == 3);
  CHECK_THAT(error_of([&] { freeze(model, "c.*"); }),
             ContainsSubstring("freeze: ") && ContainsSubstring("c.*"));
  CHECK(matches("blocks.*.weight", "blocks.0.mlp.weight"));
  CHECK(matches("*", ""));
  CHECK(matches("a*b*c", "aXbbXc"));
  CHECK(!matches("a*b", "ab."));
  CHECK(!matches("", "a"));
}

TEST_CASE("hooks can be removed, even by themselves and after their graph is gone", "[variable]") {
  const Variable x = param({2});
  int seen = 0, finished = 0;
  HookHandle gone, own;
  HookHandle first = x.register_hook([&](const at::Tensor&) {
    seen += 1;
    return at::Tensor();
  });
  own = x.register_hook([&](const at::Tensor& g) {
    seen += 10;
    own.remove();
    return g * 2;
  });
  HookHandle last = x.register_post_accumulate_grad_hook([&](Leaf&) { ++finished; });

  {
    const Variable y = exp(x);
    gone = y.register_hook([](const at::Tensor&) { return at::Tensor(); });
    sum(y * 0 + x).backward();
  }
  CHECK(seen == 11);
  CHECK(finished == 1);
  CHECK(x.grad().eq(2).all().item<bool>());

  // `own` removed itself during the previous pass.
  sum(x * 1.0).backward();
  CHECK(seen == 12);
  CHECK(finished == 2);

  // A handle may be removed a second time, after the graph is gone, or without a hook.
  first.remove();
  first.remove();
  last.remove();
  gone.remove();
  HookHandle().remove();
  sum(x * 1.0).backward();
  CHECK(seen == 12);
  CHECK(finished == 2);
}

}  // namespace
