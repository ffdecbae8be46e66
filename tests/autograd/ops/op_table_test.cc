// Compares every second row of the op table with LibTorch and with central differences, and shows
// that these checks can fail. Also tests that each op has a row, and the errors of ops.
#include <ATen/ops/randn.h>

#include "autograd/op.h"
#include "autograd/ops.h"
#include "tests/autograd/ops/op_rows.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("even rows of the op table agree with LibTorch and with central differences",
          "[op_table]") {
  check_rows(0, 2);  // op_table_rest_test.cc checks the other half
}

TEST_CASE("every op has a row in the table", "[op_table]") {
  std::set<std::string> rows;
  for (const auto& row : op_table()) rows.insert(row.op);
  std::set<std::string> ops = op_registry();
  std::erase_if(ops, [](const std::string& name) { return name.starts_with("wrong"); });
  CHECK(rows == ops);
  CHECK(ops.size() > 25);
}

// Computes x^3 with a backward of 2x^2, which is right in shape and dtype, but wrong in value.
struct WrongCube {
  static constexpr OpInfo info{.name = "wrong_cube"};
  Saved x{};
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).pow(3); }
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * x.as<T>() * x.as<T>() * 2.0};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 1); }
};

// Has a right first derivative and a wrong second derivative: in dy * x * x * 3, the first x is a
// constant instead of the input.
struct WrongSecond {
  static constexpr OpInfo info{.name = "wrong_second"};
  Saved x{};
  at::Tensor forward(const at::Tensor& x_) { return (x = x_).pow(3); }
  template <class T>
  Grads<1, T> backward(const T& dy, Needs<1>) const {
    return {dy * constant<T>(x.data()) * x.as<T>() * 3.0};
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor& y) { return flops_each(y, 1, 1); }
};

TEST_CASE("check_op() reports a wrong op", "[op_table]") {
  const auto cube = [](const std::vector<at::Tensor>& x) { return x[0].pow(3); };
  OpCase row{.op = "wrong_cube",
             .label = "",
             .inputs = {{.shape = {2, 3}}},
             .ours = [](const std::vector<Variable>& v) { return apply(WrongCube{}, v[0]); },
             .oracle = cube};
  const auto failures = check_op(row);
  REQUIRE(!failures.empty());
  CHECK_THAT(failures[0], ContainsSubstring("gradient 0"));

  row.ours = [](const std::vector<Variable>& v) { return apply(WrongSecond{}, v[0]); };
  for (const auto& failure : check_op(row))
    CHECK_THAT(failure, ContainsSubstring("second derivative"));
  CHECK(!check_op(row).empty());

  row.ours = [](const std::vector<Variable>& v) { return pow(v[0], 3); };
  CHECK(check_op(row).empty());
}

TEST_CASE("an op's error names the op, its inputs and the requirement", "[op_table]") {
  const Variable x(at::randn({2, 3})), w(at::randn({4, 5}));
  CHECK_THAT(error_of([&] { softmax(x, 5); }),
             ContainsSubstring("softmax(float32[2,3]): dim 5") && ContainsSubstring("[-2, 2)"));
  CHECK_THAT(error_of([&] { linear(x, w); }),
             ContainsSubstring("linear(float32[2,3], float32[4,5]): ") &&
                 ContainsSubstring("last dim") && ContainsSubstring(" 5"));
  CHECK_THAT(
      error_of([&] { matmul(x, x); }),
      ContainsSubstring("matmul(float32[2,3], float32[2,3]): ") && ContainsSubstring("3 and 2"));
  CHECK_THAT(error_of([&] { add(x, w); }), ContainsSubstring("add(float32[2,3], float32[4,5]): ") &&
                                               ContainsSubstring("(3)") &&
                                               ContainsSubstring("(5)"));
  CHECK_THAT(error_of([&] { reshape(x, {4, 4}); }),
             ContainsSubstring("reshape(float32[2,3]): ") && ContainsSubstring("[4, 4]"));
}

}  // namespace
