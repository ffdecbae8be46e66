// gradcheck() passes what is right, and names what is wrong in it.

#include "autograd/gradcheck.h"
#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/ops/formula.h"
#include "core/mode.h"
#include "tests/catch.h"

namespace {

using namespace lathe;

/// x^2 for each element, but for what `fault` makes of its gradient.
struct Squared {
  static constexpr OpInfo info{.name = "wrong_square"};
  std::function<at::Tensor(const at::Tensor&)> fault;
  Saved x = Saved::input(0);
  at::Tensor forward(const at::Tensor& x_) { return (x = x_) * x_; }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const { return {fault(2 * x.as<>() * dy)}; }
};

std::string told(const std::function<at::Tensor(const at::Tensor&)>& fault, double scale = 1) {
  const std::vector<Variable> x{randn({2}, 1), randn({2, 3}, 2)};
  return error_of([&] {
    gradcheck([&](const std::vector<Variable>& v) { return v[0][0] * apply(Squared{fault}, v[1]) * scale; }, x);
  });
}

TEST_CASE("gradcheck finds one wrong element and names it", "[gradcheck]") {
  CHECK(told([](const at::Tensor& g) { return g; }) == "");
  const auto doubled = [](const at::Tensor& g) {
    at::Tensor wrong = g.clone();
    wrong[1][2] *= 1.001;
    return wrong;
  };
  CHECK_THAT(told(doubled), ContainsSubstring("gradcheck: input 1, element [1,2]: backward gives "));
  CHECK_THAT(told(doubled, 1e-9), ContainsSubstring("gradcheck: input 1, element [1,2]"));  // however small all is
  CHECK(told([](const at::Tensor& g) { return g; }, 1e-9) == "");
  CHECK_THAT(told([](const at::Tensor& g) { return g * NAN; }), ContainsSubstring("element [0,0]: backward gives nan"));
  CHECK_THAT(told([](const at::Tensor&) { return at::Tensor(); }), ContainsSubstring("(there is no gradient)"));
}

TEST_CASE("gradcheck refuses what it can't judge, and changes no input", "[gradcheck]") {
  const Variable x = randn({40}, 1);
  const at::Tensor before = x.data().clone();
  gradcheck([](const Variable& v) { return exp(v) / (1.0 + v * v); }, x);
  CHECK(x.data().equal(before));
  CHECK_THAT(error_of([&] { gradcheck([](const Variable& v) { return cast(v, at::kFloat); }, x); }),
             ContainsSubstring("computes in float32 of float64 inputs"));
  const Training training;
  CHECK_THAT(error_of([&] { gradcheck([](const Variable& v) { return dropout(v, 0.5); }, x); }),
             ContainsSubstring("for the same inputs; make its random numbers the same"));
  gradcheck(
      [](const Variable& v) {
        const TrainingStep step({.seed = 1});
        return dropout(v, 0.5);
      },
      x);
  CHECK_THAT(error_of([&] { gradcheck([](const Variable&) { return ones({1}, at::kDouble); }, x); }),
             ContainsSubstring("depends on none of its inputs"));
  CHECK_THAT(error_of([&] { gradcheck([](const Variable& v) { return v; }, full({2}, 1, at::kLong)); }),
             ContainsSubstring("no input is of floating point"));
  // Second derivatives: the gradient as a function.
  gradcheck([](const Variable& v) { return grad(sum(exp(v) * v), {v}, {}, /*create_graph=*/true)[0]; }, x);
}

}  // namespace
