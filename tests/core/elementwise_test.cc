// Tests of the functions that chains compute with Lathe's own kernels instead of ATen's.
#include "core/elementwise.h"

#include <ATen/Parallel.h>

#include <functional>

#include "core/kernels/gemm.h"
#include "tests/support/catch.h"
#include "tests/support/vector_sets.h"

namespace {

using namespace lathe;
using namespace lathe::test;

struct Function {
  const char* name;
  ChainOp op, gradient;
  bool of_result;  // whether the gradient is computed from the result, not the input
  std::function<at::Tensor(const at::Tensor&)> value;
};

std::vector<Function> own_functions() {
  return {{"tanh", ChainOp::tanh, ChainOp::own_tanh_grad, true,
           [](const at::Tensor& x) { return x.tanh(); }},
          {"silu", ChainOp::silu, ChainOp::own_silu_grad, false,
           [](const at::Tensor& x) { return torch::silu(x); }},
          {"gelu", ChainOp::gelu, ChainOp::own_gelu_grad, false,
           [](const at::Tensor& x) { return torch::gelu(x, "tanh"); }}};
}

TEST_CASE("functions of chains and their gradients agree with float64", "[elementwise]") {
  torch::manual_seed(1);
  const at::Tensor x = torch::cat({torch::randn({4000}) * 3, torch::randn({1000}) * 1e-3,
                                   torch::randn({1000}) * 40, torch::linspace(-1, 1, 3001),
                                   torch::tensor({0.0f, -0.0f, 90.0f, -90.0f, 1e30f})});
  const at::Tensor up = torch::randn(x.sizes());
  for (const Function& f : own_functions()) {
    const at::Tensor wide = x.to(at::kDouble).requires_grad_(true), value = f.value(wide);
    value.sum().backward();
    const at::Tensor derivative = wide.grad(), exact = value.detach();
    on_every_set([&](const std::string& set) {
      INFO(f.name << ", " << set);
      const at::Tensor y = elementwise(with_kernel(f.op), x);
      // The allowed error is a few units in the last place. silu and gelu vanish for large negative
      // inputs, so the allowed error of these functions is relative to the input.
      const at::Tensor scale = f.of_result ? exact.abs() : x.to(at::kDouble).abs();
      CHECK((y - exact).abs().le(scale * 1e-6 + 1e-37).all().item<bool>());

      const at::Tensor dx = elementwise(f.gradient, up, f.of_result ? y : x);
      // The derivative of tanh is 1 - y^2, which has a rounding error relative to 1.
      CHECK((dx - up * derivative).abs().le(up.abs() * 2e-6).all().item<bool>());
    });

    // NaN and infinity give the same results as in ATen. For negative infinity, only the result of
    // tanh is checked.
    const at::Tensor special = torch::tensor({NAN, INFINITY, -INFINITY});
    const at::Tensor y = elementwise(with_kernel(f.op), special), wanted = f.value(special);
    CHECK(y[0].isnan().item<bool>());
    CHECK(y[1].item<float>() == wanted[1].item<float>());
    if (f.of_result) CHECK(y[2].item<float>() == -1);
  }
}

TEST_CASE("functions of chains round to 16 bits once, and do not depend on the position",
          "[elementwise]") {
  torch::manual_seed(2);
  const int threads = at::get_num_threads();
  for (const Function& f : own_functions()) {
    const at::Tensor x = torch::randn({70001}) * 2;
    at::set_num_threads(1);
    const at::Tensor y = elementwise(with_kernel(f.op), x);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const at::Tensor low = x.to(dtype), wide = low.to(at::kFloat), up = wide.flip(0);
      CHECK(elementwise(with_kernel(f.op), low)
                .equal(elementwise(with_kernel(f.op), wide).to(dtype)));
      CHECK(elementwise(f.gradient, up.to(dtype), low)
                .equal(elementwise(f.gradient, up, wide).to(dtype)));
    }
    at::set_num_threads(3);
    CHECK(elementwise(with_kernel(f.op), x).equal(y));
    for (const int64_t first : {1, 5, 64, 69990})
      CHECK(elementwise(with_kernel(f.op), x.slice(0, first)).equal(y.slice(0, first)));
  }
  at::set_num_threads(threads);

  // Without kernels, ATen's functions are used.
  use_kernels(false);
  CHECK(with_kernel(ChainOp::tanh) == ChainOp::tanh);
  CHECK(!has_elementwise(torch::ones({3})));
  use_kernels(true);
  CHECK(with_kernel(ChainOp::tanh) == ChainOp::own_tanh);
  CHECK(has_elementwise(torch::ones({3})));
  CHECK(!has_elementwise(torch::ones({3, 2}).t()));
  CHECK(has_elementwise(torch::ones({3}, at::kHalf)));
  CHECK(!has_elementwise(torch::ones({3}, at::kDouble)));
}

}  // namespace
