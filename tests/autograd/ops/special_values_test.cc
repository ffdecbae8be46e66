// Tests ops at NaN, infinities, ties and zeros and on tensors without elements, in-place ops, and
// which results are views.
#include <cmath>
#include <limits>

#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/ops.h"
#include "autograd/ops/losses.h"
#include "autograd/ops/math.h"
#include "autograd/ops/reductions.h"
#include "autograd/ops/shapes.h"
#include "core/mode.h"
#include "tests/support/catch.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;

using V = const std::vector<Variable>&;
using T = const std::vector<at::Tensor>&;

struct ValueCase {
  std::string name;
  std::function<Variable(V)> ours;
  std::function<at::Tensor(T)> oracle;
};

const double infinite = std::numeric_limits<double>::infinity(), nan_value = std::nan("");

/// Returns how results differ, or "". NaN and infinities must be at the same positions; finite
/// values may differ by roundings of the dtype.
std::string differs(const at::Tensor& ours, const at::Tensor& wanted) {
  if (ours.sizes() != wanted.sizes()) return "the shape";
  const double spacing = wanted.scalar_type() == at::kDouble ? 1e-13 : 1e-5;
  return at::allclose(ours, wanted, spacing, spacing * 1e-3, /*equal_nan=*/true)
             ? ""
             : str(ours, " instead of ", wanted);
}

void check(const ValueCase& k, const std::vector<at::Tensor>& x) {
  INFO(k.name);
  std::vector<Variable> in;
  std::vector<at::Tensor> torch_in;
  for (const at::Tensor& t : x) {
    in.push_back(Variable::parameter(t.clone()));
    torch_in.push_back(t.clone().requires_grad_());
  }
  const Variable y = k.ours(in);
  const at::Tensor wanted = k.oracle(torch_in), dy = torch::full_like(wanted, 1.5);
  CHECK(differs(y.data(), wanted.detach()) == "");
  const auto ours = grad(y, in, Variable(dy.detach()));
  const auto theirs =
      torch::autograd::grad({wanted}, torch_in, {dy}, false, false, /*allow_unused=*/true);
  for (size_t i = 0; i < in.size(); ++i) {
    INFO("gradient " << i);
    // PyTorch leaves some gradients undefined if they are all zeros (norm with p = 0).
    REQUIRE(ours[i].defined());
    CHECK(differs(ours[i].data(),
                  theirs[i].defined() ? theirs[i] : torch::zeros_like(torch_in[i])) == "");
  }
}

TEST_CASE("elementwise functions agree with LibTorch at NaN, infinities, zeros and kinks",
          "[special_values]") {
  const std::vector<ValueCase> cases{
      {"abs", [](V v) { return abs(v[0]); }, [](T x) { return x[0].abs(); }},
      {"sign", [](V v) { return sign(v[0]); }, [](T x) { return x[0].sign(); }},
      {"sin", [](V v) { return sin(v[0]); }, [](T x) { return x[0].sin(); }},
      {"cos", [](V v) { return cos(v[0]); }, [](T x) { return x[0].cos(); }},
      {"log1p", [](V v) { return log1p(v[0]); }, [](T x) { return x[0].log1p(); }},
      {"expm1", [](V v) { return expm1(v[0]); }, [](T x) { return x[0].expm1(); }},
      {"rsqrt", [](V v) { return rsqrt(v[0]); }, [](T x) { return x[0].rsqrt(); }},
      {"reciprocal", [](V v) { return reciprocal(v[0]); }, [](T x) { return x[0].reciprocal(); }},

      {"softplus", [](V v) { return softplus(v[0]); }, [](T x) { return torch::softplus(x[0]); }},
      {"logsigmoid", [](V v) { return logsigmoid(v[0]); },
       [](T x) { return torch::log_sigmoid(x[0]); }},
      {"elu", [](V v) { return elu(v[0]); }, [](T x) { return torch::elu(x[0]); }},
      {"leaky_relu", [](V v) { return leaky_relu(v[0]); },
       [](T x) { return torch::leaky_relu(x[0]); }},
      {"hardswish", [](V v) { return hardswish(v[0]); },
       [](T x) { return torch::hardswish(x[0]); }},
      {"mish", [](V v) { return mish(v[0]); }, [](T x) { return torch::mish(x[0]); }},
      {"clamp", [](V v) { return clamp(v[0], -1.0, 3.0); },
       [](T x) { return x[0].clamp(-1.0, 3.0); }},

      // The following functions are not elementwise.
      {"max", [](V v) { return max(v[0]); }, [](T x) { return x[0].max(); }},
      {"min", [](V v) { return min(v[0]); }, [](T x) { return x[0].min(); }},
      {"sort", [](V v) { return sort(v[0]).first; },
       [](T x) { return std::get<0>(x[0].sort(true, -1, false)); }},
      {"cumsum", [](V v) { return cumsum(v[0], 0); }, [](T x) { return x[0].cumsum(0); }}};

  const std::vector<double> at{nan_value, infinite, -infinite, 0.0, -0.0, 1,     -1, 3,
                               -3,        0.5,      20,        21,  -40,  1e-30, 88};

  for (const auto dtype : {at::kDouble, at::kFloat}) {
    for (const ValueCase& k : cases) check(k, {torch::tensor(at, dtype)});
    // All values of a running sum after a NaN are NaN, so this call tests the other values without
    // the NaN.
    check(cases.back(),
          {torch::tensor({-0.0, 0.5, -3.0, 1e-30, infinite, 88.0, -infinite, 1.0}, dtype)});
  }
}

TEST_CASE("binary ops agree with LibTorch at NaN, infinities and ties", "[special_values]") {
  const std::vector<ValueCase> cases{
      {"maximum", [](V v) { return maximum(v[0], v[1]); },
       [](T x) { return torch::maximum(x[0], x[1]); }},
      {"minimum", [](V v) { return minimum(v[0], v[1]); },
       [](T x) { return torch::minimum(x[0], x[1]); }},
      {"xlogy", [](V v) { return xlogy(v[0], v[1]); },
       [](T x) { return torch::xlogy(x[0], x[1]); }},
      {"clamp", [](V v) { return clamp(v[0], v[1]); },
       [](T x) { return torch::clamp(x[0], std::optional(x[1])); }},
      {"clamp, both", [](V v) { return clamp(v[0], v[1], v[1] * 0.5); },
       [](T x) { return torch::clamp(x[0], std::optional(x[1]), std::optional(x[1] * 0.5)); }},
      {"where", [](V v) { return where(v[0].data().gt(0), v[0], v[1]); },
       [](T x) { return torch::where(x[0].gt(0), x[0], x[1]); }},
      {"smooth_l1_loss", [](V v) { return smooth_l1_loss(v[0], v[1], Reduction::none); },
       [](T x) { return torch::smooth_l1_loss(x[0], x[1], at::Reduction::None); }},
      {"l1_loss", [](V v) { return l1_loss(v[0], v[1], Reduction::none); },
       [](T x) { return torch::l1_loss(x[0], x[1], at::Reduction::None); }},
      {"binary_cross_entropy_with_logits",
       [](V v) { return binary_cross_entropy_with_logits(v[0], v[1], {}, Reduction::none); },
       [](T x) {
         return torch::binary_cross_entropy_with_logits(x[0], x[1], {}, {}, at::Reduction::None);
       }}};

  const std::vector<double> at{nan_value, infinite, -infinite, 0, 1, -1, 2.5};
  const at::Tensor a = torch::tensor(at, at::kDouble);
  for (const ValueCase& k : cases)
    check(k,
          {a.unsqueeze(1).expand({7, 7}).contiguous(), a.unsqueeze(0).expand({7, 7}).contiguous()});
}

TEST_CASE("reductions agree with LibTorch at NaN, infinities, zeros and ties, and without elements",
          "[special_values]") {
  std::vector<ValueCase> cases{
      {"max", [](V v) { return max(v[0], 1).first; }, [](T x) { return std::get<0>(x[0].max(1)); }},
      {"min", [](V v) { return min(v[0], 1).first; }, [](T x) { return std::get<0>(x[0].min(1)); }},
      {"logsumexp", [](V v) { return logsumexp(v[0], 1); }, [](T x) { return x[0].logsumexp(1); }},
      {"prod", [](V v) { return prod(v[0], 1); }, [](T x) { return x[0].prod(1); }},
      {"var", [](V v) { return var(v[0], 1); }, [](T x) { return x[0].var(1, true, false); }},
      {"var of too few", [](V v) { return var(v[0], 1, 4); },
       [](T x) { return x[0].var(at::IntArrayRef{1}, at::Scalar(4), false); }},
      {"std", [](V v) { return lathe::std(v[0], 1); },
       [](T x) { return x[0].std(1, true, false); }}};
  for (const double p : {0.0, 0.5, 1.0, 2.0, 3.0, infinite, -infinite}) {
    cases.push_back({str("norm ", p), [p](V v) { return norm(v[0], p, 1); },
                     [p](T x) { return torch::linalg_vector_norm(x[0], p, 1); }});
  }

  const at::Tensor rows = torch::tensor({{nan_value, 1.0, 2.0, 1.0},
                                         {infinite, 1.0, 2.0, -3.0},
                                         {-infinite, 1.0, -infinite, 0.5},
                                         {0.0, 0.0, 0.0, 0.0},
                                         {2.0, 2.0, -2.0, 2.0},
                                         {-infinite, -infinite, -infinite, -infinite},
                                         {0.0, 3.0, 0.0, -1.0},
                                         {5.0, 0.0, 1.5, 2.0}},
                                        at::kDouble);

  for (const ValueCase& k : cases) {
    for (int64_t i = 0; i < rows.size(0); ++i) {
      INFO("row " << i);
      check(k, {rows.slice(0, i, i + 1)});
    }
    check(k, {rows.slice(0, 0, 0)});
  }

  const at::Tensor t = torch::tensor({3.0, nan_value, 3.0, 1.0});
  CHECK(argmax(Variable(t)).item<int64_t>() == 1);
  CHECK(argmin(Variable(t.slice(0, 2)), -1, true).equal(torch::tensor({1})));
  CHECK(argmax(Variable(torch::ones({3, 4})), 1).equal(torch::zeros({3}, at::kLong)));

  // Without elements, there is no maximum or minimum.
  CHECK_THAT(error_of([] { max(zeros({0})); }),
             ContainsSubstring("max(float32[0]): ") && ContainsSubstring("one element"));
  CHECK_THAT(error_of([] { argmax(zeros({0})); }),
             ContainsSubstring("argmax(float32[0]): ") && ContainsSubstring("one element"));
  CHECK_THAT(error_of([] { min(zeros({2, 0}), 1); }),
             ContainsSubstring("min(float32[2,0]): dim 1"));
}

TEST_CASE("losses handle ignored targets and large logits, and refuse wrong shapes",
          "[special_values]") {
  const Variable logits = randn({3, 4}, 1, at::kDouble).requires_grad_();
  CrossEntropyOptions smooth;
  smooth.label_smoothing = 0.1;
  const at::Tensor ignored = torch::full({3}, -100, at::kLong);
  CHECK(cross_entropy(logits, ignored, smooth).item() == 0);
  CHECK(nll_loss(log_softmax(logits, 1), ignored).item() == 0);
  backward(cross_entropy(logits, ignored, smooth));
  CHECK(logits.grad().eq(0).all().item<bool>());
  // The loss of a confident wrong prediction is the size of its logit, not infinity.
  const Variable far(torch::tensor({-800.0, 800.0}, at::kDouble)),
      wrong(torch::tensor({1.0, 0.0}, at::kDouble));
  CHECK(binary_cross_entropy_with_logits(far, wrong).item() == 800);
  CHECK_THAT(error_of([&] { cross_entropy(logits, torch::zeros({2}, at::kLong), smooth); }),
             ContainsSubstring("cross_entropy(float64[3,4], int64[2])") &&
                 ContainsSubstring("[N, C, ...]"));
  smooth.weight = torch::ones({3});
  CHECK_THAT(error_of([&] { cross_entropy(logits, ignored, smooth); }),
             ContainsSubstring("cross_entropy: weight") && ContainsSubstring("[4]"));
}

TEST_CASE("the second derivative of smooth_l1_loss is LibTorch's at its kinks",
          "[special_values]") {
  const at::Tensor values = torch::tensor({-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0}, at::kDouble);
  const at::Tensor zeros = torch::zeros_like(values);
  const Variable x = Variable::parameter(values.clone());
  const Variable loss = smooth_l1_loss(x, Variable(zeros), Reduction::sum, 1);
  const Variable first = grad(loss, {x}, {}, /*create_graph=*/true)[0];
  const at::Tensor second = grad(sum(first), {x})[0].data();

  const at::Tensor t = values.clone().requires_grad_();
  const at::Tensor of_t = torch::autograd::grad(
      {torch::smooth_l1_loss(t, zeros, at::Reduction::Sum, 1.0)}, {t}, {}, true, true)[0];
  CHECK(first.data().equal(of_t.detach()));
  CHECK(second.equal(torch::autograd::grad({of_t.sum()}, {t})[0]));
}

TEST_CASE("an in-place op reuses memory, and never gives a wrong gradient", "[special_values]") {
  const Variable w = randn({4, 3}, 1, at::kDouble).requires_grad_(),
                 x = randn({5, 3}, 2, at::kDouble);
  const auto reference = grad(sum(relu(linear(x, w))), {w})[0].data();
  Variable y = linear(x, w);
  const void* before = y.data().const_data_ptr();
  relu_(y);
  CHECK(y.data().const_data_ptr() == before);
  CHECK(grad(sum(y), {w})[0].data().equal(reference));

  Variable held = linear(x, w);
  const Variable other = held;
  CHECK_THAT(error_of([&] { relu_(held); }),
             ContainsSubstring("relu_(float64[5,4])") && ContainsSubstring("held"));
  Variable saved = exp(linear(x, w));  // exp's backward needs its result
  CHECK_THAT(error_of([&] { mul_(saved, 2); }),
             ContainsSubstring("mul_(float64[5,4])") && ContainsSubstring("held"));
  Variable whole = linear(x, w), part = whole[0];
  CHECK_THAT(error_of([&] { tanh_(part); }),
             ContainsSubstring("tanh_(float64[4])") && ContainsSubstring("held"));
  CHECK_THAT(error_of([&] { tanh_(whole); }),
             ContainsSubstring("tanh_(float64[5,4])") && ContainsSubstring("held"));
  Variable parameter = w;
  CHECK_THAT(error_of([&] { relu_(parameter); }),
             ContainsSubstring("relu_(float64[4,3])") && ContainsSubstring("NoGrad"));

  // sigmoid_ saves its result, so a later change of the result is noticed.
  Variable late = linear(x, w);
  sigmoid_(late);
  {
    const NoGrad off;
    Variable handle = late;
    mul_(handle, 2);
  }
  CHECK_THAT(error_of([&] { backward(sum(late)); }),
             ContainsSubstring("sigmoid_: ") && ContainsSubstring("in place"));
  // If no graph is recorded, every handle sees the change.
  Variable a = ones({2}), b = a;
  add_(a, ones({2}));
  CHECK(b.data().eq(2).all().item<bool>());
  CHECK_THAT(error_of([&] { leaky_relu_(a, -1); }),
             ContainsSubstring("leaky_relu_(float32[2])") && ContainsSubstring("slope of -1"));
}

TEST_CASE("views share x's storage, and copies do not", "[special_values]") {
  const Variable x = randn({2, 1, 6}, 1);
  const auto shares = [&](const Variable& y) {
    return y.data().storage().data() == x.data().storage().data();
  };
  CHECK(shares(squeeze(x)));
  CHECK(shares(squeeze(transpose(x, 0, 2), 1)));
  for (const Variable& y : chunk(x, 4, 2)) CHECK(shares(y));
  for (const Variable& y : split(x, 4, -1)) CHECK(shares(y));
  CHECK(shares(unfold(x, 2, 3, 1)));
  CHECK(shares(diagonal(x, 0, 0, 2)));
  CHECK_FALSE(shares(flip(x, 0)));
  CHECK_FALSE(shares(roll(x, 0, 0)));
  CHECK_FALSE(shares(stack({x})));
}

}  // namespace
