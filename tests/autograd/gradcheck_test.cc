// Tests that gradcheck() accepts correct gradients and names the first wrong element. Also uses
// gradcheck() and finite differences to check second derivatives.

#include "autograd/gradcheck.h"
#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/ops/formula.h"
#include "core/mode.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;

/// Computes x^2 for each element; `fault` replaces the gradient by a wrong one.
struct Squared {
  static constexpr OpInfo info{.name = "wrong_square"};
  std::function<at::Tensor(const at::Tensor&)> fault;
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) { return (x = x_) * x_; }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const { return {fault(2 * x.as<>() * dy)}; }
};

std::string gradcheck_error(const std::function<at::Tensor(const at::Tensor&)>& fault,
                            double scale = 1) {
  const std::vector<Variable> x{randn({2}, 1), randn({2, 3}, 2)};
  return error_of([&] {
    gradcheck(
        [&](const std::vector<Variable>& v) {
          return v[0][0] * apply(Squared{fault}, v[1]) * scale;
        },
        x);
  });
}

TEST_CASE("gradcheck finds one wrong element and names it", "[gradcheck]") {
  CHECK(gradcheck_error([](const at::Tensor& g) { return g; }) == "");
  const auto doubled = [](const at::Tensor& g) {
    at::Tensor wrong = g.clone();
    wrong[1][2] *= 1.001;
    return wrong;
  };
  CHECK_THAT(gradcheck_error(doubled), ContainsSubstring("gradcheck: input 1, element [1,2]"));
  CHECK_THAT(gradcheck_error(doubled, 1e-9),
             ContainsSubstring("gradcheck: input 1, element [1,2]"));  // found even if all
                                                                       // gradients are tiny
  CHECK(gradcheck_error([](const at::Tensor& g) { return g; }, 1e-9) == "");
  CHECK_THAT(gradcheck_error([](const at::Tensor& g) { return g * NAN; }),
             ContainsSubstring("input 1, element [0,0]") && ContainsSubstring("nan"));
  CHECK_THAT(gradcheck_error([](const at::Tensor&) { return at::Tensor(); }),
             ContainsSubstring("input 1") && ContainsSubstring("no gradient"));
}

TEST_CASE("gradcheck refuses functions that it can't check, and changes no input", "[gradcheck]") {
  const Variable x = randn({40}, 1);
  const at::Tensor before = x.data().clone();
  gradcheck([](const Variable& v) { return exp(v) / (1.0 + v * v); }, x);
  gradcheck([](const Variable& v) { return sum(v); }, x);  // the gradient is an expanded scalar
  CHECK(x.data().equal(before));

  CHECK_THAT(error_of([&] { gradcheck([](const Variable& v) { return cast(v, at::kFloat); }, x); }),
             ContainsSubstring("gradcheck: ") && ContainsSubstring("float32") &&
                 ContainsSubstring("float64"));

  const Training training;
  CHECK_THAT(error_of([&] { gradcheck([](const Variable& v) { return dropout(v, 0.5); }, x); }),
             ContainsSubstring("gradcheck: ") && ContainsSubstring("random"));
  gradcheck(
      [](const Variable& v) {
        const TrainingStep step({.seed = 1});
        return dropout(v, 0.5);
      },
      x);

  CHECK_THAT(
      error_of([&] { gradcheck([](const Variable&) { return ones({1}, at::kDouble); }, x); }),
      ContainsSubstring("gradcheck: ") && ContainsSubstring("depends"));
  CHECK_THAT(
      error_of([&] { gradcheck([](const Variable& v) { return v; }, full({2}, 1, at::kLong)); }),
      ContainsSubstring("gradcheck: ") && ContainsSubstring("floating-point"));

  // The function under test is itself a gradient, so this call checks second derivatives.
  gradcheck(
      [](const Variable& v) { return grad(sum(exp(v) * v), {v}, {}, /*create_graph=*/true)[0]; },
      x);
}

/// A small network of fused ops: layer norm, a linear layer with GELU, attention, RMS norm, SwiGLU.
Variable network(const std::vector<Variable>& v) {
  Variable h = layer_norm(v[0], v[1], v[2]);
  h = linear_gelu(h, v[3], v[4]);
  h = attention(reshape(h, {1, v[0].size(0), v[3].size(0)}), 2);
  return swiglu(rms_norm(h, v[5]));
}
std::vector<Variable> network_inputs(at::ScalarType dtype) {
  return {randn({3, 5}, 1, dtype),  randn({5}, 2, dtype),  randn({5}, 3, dtype),
          randn({12, 5}, 4, dtype), randn({12}, 5, dtype), randn({4}, 6, dtype)};
}
/// Returns the sum of squares of the gradients of network(), itself a function of the same inputs.
Variable squared_gradients(const std::vector<Variable>& v) {
  const Variable y = network(v);
  Variable s;
  for (const Variable& g : grad(sum(y * y), v, {}, /*create_graph=*/true))
    s = s.defined() ? s + sum(g * g) : sum(g * g);
  return s;
}

TEST_CASE("a gradient penalty through fused ops has correct gradients", "[gradcheck]") {
  gradcheck(squared_gradients, network_inputs(at::kDouble), {.tolerance = 1e-4});
  // In float32 the forward pass is fused. An error of about 1000 float32 roundings is allowed.
  const auto gradients = [](at::ScalarType dtype) {
    std::vector<Variable> in = network_inputs(at::kDouble);
    for (Variable& v : in) v = Variable::parameter(v.data().to(dtype));
    return grad(squared_gradients(in), in);
  };
  const auto low = gradients(at::kFloat), exact = gradients(at::kDouble);
  for (size_t i = 0; i < exact.size(); ++i) {
    const at::Tensor wanted = exact[i].data();
    const double off = (low[i].data().to(at::kDouble) - wanted).abs().max().item<double>();
    CHECK(off <= 1e-4 * wanted.abs().max().item<double>());
  }
}

TEST_CASE("Hessian-vector products agree with finite differences of the gradient", "[gradcheck]") {
  const std::vector<Variable> x = network_inputs(at::kDouble);
  const auto gradient_at = [&](double step) {
    std::vector<Variable> in;
    for (size_t i = 0; i < x.size(); ++i)
      in.push_back(Variable::parameter(x[i].data() +
                                       step * randn(x[i].sizes(), 10 + i, at::kDouble).data()));
    return grad(sum(network(in)), in);
  };
  std::vector<Variable> in;
  for (const Variable& v : x) in.push_back(Variable::parameter(v.data()));
  const auto first = grad(sum(network(in)), in, {}, /*create_graph=*/true);
  Variable along;
  for (size_t i = 0; i < in.size(); ++i) {
    const Variable term = sum(first[i] * randn(x[i].sizes(), 10 + i, at::kDouble));
    along = along.defined() ? along + term : term;
  }
  const auto product = grad(along, in), above = gradient_at(1e-5), below = gradient_at(-1e-5);
  for (size_t i = 0; i < in.size(); ++i) {
    const at::Tensor wanted = (above[i].data() - below[i].data()) / 2e-5;
    const double off = (product[i].data() - wanted).abs().max().item<double>();
    CHECK(off <= 1e-6 * (1 + wanted.abs().max().item<double>()));
  }
}

}  // namespace
