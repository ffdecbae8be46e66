// Tests of values that are not finite. Every kernel must propagate a NaN at any position of its
// inputs to its results, so that a diverged run is noticed. An intermediate that overflows must not
// give a wrong finite result.
#include "autograd/engine.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/kernels/gemm.h"
#include "core/mode.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"
#include "tests/support/torch_oracle.h"
#include "tests/support/vector_sets.h"

namespace {

using namespace lathe;
using namespace lathe::test;

using Tensors = std::vector<at::Tensor>;
using Sizes = std::vector<int64_t>;

struct NanCase {
  std::string op;
  std::vector<Sizes> inputs;
  std::function<Variable(const std::vector<Variable>&)> ours;
  std::function<at::Tensor(const Tensors&)> oracle;
  bool more = false;  ///< whether Lathe's result may have a NaN where the oracle has none
};

constexpr int64_t c = 37;  // several vectors of 16, 8 or 4 floats, and an incomplete one

std::vector<NanCase> nan_cases() {
  using V = const std::vector<Variable>&;
  using T = const Tensors&;

  return {{"linear",
           {{3, 19}, {c, 19}, {c}, {3, c}},
           [](V v) { return linear(v[0], v[1], v[2], v[3]); },
           [](T x) { return torch::linear(x[0], x[1], x[2]) + x[3]; }},
          {"linear_gelu",
           {{3, 19}, {c, 19}, {c}},
           [](V v) { return linear_gelu(v[0], v[1], v[2]); },
           [](T x) { return torch::gelu(torch::linear(x[0], x[1], x[2]), "tanh"); }},
          {"layer_norm",
           {{3, c}, {c}, {c}},
           [](V v) { return layer_norm(v[0], v[1], v[2]); },
           [](T x) { return torch::layer_norm(x[0], {c}, x[1], x[2]); }},
          {"rms_norm",
           {{3, c}, {c}},
           [](V v) { return rms_norm(v[0], v[1]); },
           [](T x) { return torch::rms_norm(x[0], {c}, x[1], 1e-5); }},
          {"swiglu",
           {{3, 2 * c}},
           [](V v) { return swiglu(v[0]); },
           [](T x) { return torch::silu(x[0].slice(-1, 0, c)) * x[0].slice(-1, c); }},
          // The oracle computes row by row, so that a position depends only on itself and previous
          // positions. In a kernel's block, a NaN at a masked position may spread.
          {"attention",
           {{1, 5, 3 * 2 * 18}},
           [](V v) { return attention(v[0], 2); },
           [](T x) {
             Tensors rows;
             const at::Tensor packed =
                 x[0].reshape({5, 3, 2, 18}).permute({1, 2, 0, 3});  // q, k, v; head; position
             for (int64_t t = 0; t < 5; ++t) {
               const auto upto = [&](int64_t i) { return packed[i].slice(1, 0, t + 1); };
               const at::Tensor s =
                   (packed[0].slice(1, t, t + 1).matmul(upto(1).transpose(1, 2))) / std::sqrt(18.0);
               rows.push_back(s.softmax(-1).matmul(upto(2)));  // [2, 1, 18]
             }
             return torch::cat(rows, 1).transpose(0, 1).reshape({1, 5, 36});
           },
           true},
          {"embedding",
           {{3, c}},
           [](V v) { return embedding(longs({1, 0, 1, 2}), v[0]); },
           [](T x) { return torch::embedding(x[0], longs({1, 0, 1, 2})); }},
          {"linear_cross_entropy",
           {{3, 19}, {c, 19}},
           [](V v) { return linear_cross_entropy(v[0], v[1], longs({0, 36, 17})); },
           [](T x) {
             return torch::cross_entropy_loss(torch::linear(x[0], x[1]), longs({0, 36, 17}));
           }},
          {"dropout",  // dropped elements are zero, even if they were NaN
           {{3, c}},
           [](V v) {
             const TrainingStep step(step_random);
             return dropout(v[0], 0.4, 11);
           },
           [](T x) {
             const TrainingStep step(step_random);
             const at::Tensor mask =
                 dropout(Variable(torch::ones(x[0].sizes(), at::kDouble)), 0.4, 11).data();
             return torch::where(mask.eq(0), torch::zeros_like(x[0]), x[0] * mask);
           }}};
}

/// Returns the op's result and the gradients of all inputs.
Tensors run_ours(const NanCase& k, const Tensors& x, const at::Tensor& dy) {
  std::vector<Variable> in;
  for (const auto& t : x) in.push_back(Variable::parameter(t));
  const Variable y = k.ours(in);
  Tensors all{y.data()};
  for (auto& g : grad(y, in, Variable(dy))) all.push_back(g.data());
  return all;
}
Tensors run_oracle(const NanCase& k, const Tensors& x, const at::Tensor& dy) {
  Tensors in;
  for (const auto& t : x) in.push_back(t.detach().clone().requires_grad_());
  const at::Tensor y = k.oracle(in);
  Tensors all{y.detach()};
  for (auto& g : torch::autograd::grad({y}, in, {dy})) all.push_back(g);
  return all;
}

/// Returns a mask of the NaNs of each tensor.
std::vector<at::Tensor> nans(const Tensors& all) {
  std::vector<at::Tensor> out;
  for (const auto& t : all) out.push_back(t.isnan());
  return out;
}

/// Calls f with Lathe's kernels and with ATen's.
template <class F>
void with_and_without(F&& f) {
  for (const bool on : {true, false}) {
    use_kernels(on);
    f(on ? std::string("Lathe's kernels") : std::string("ATen's kernels"));
  }
  use_kernels(true);
}

TEST_CASE("a NaN anywhere in an input or a cotangent gives NaN at the oracle's positions",
          "[nan_propagation]") {
  int sets = 0;
  on_every_set([&](const std::string&) { ++sets; });
  CHECK(sets >= 1);

  for (const auto& k : nan_cases()) {
    torch::manual_seed(1);
    Tensors x;
    for (const auto& sizes : k.inputs) x.push_back(torch::randn(sizes, at::kDouble));
    const at::Tensor dy = torch::randn(k.oracle(x).sizes(), at::kDouble);

    // Each run puts a NaN at one position of one input or of the cotangent. The first run has no
    // NaN.
    struct Place {
      size_t input;
      int64_t at;
    };
    std::vector<Place> places{{0, -1}};
    std::map<std::string, std::pair<int, std::string>> problems;
    for (size_t i = 0; i <= x.size(); ++i) {
      const at::Tensor& t = i < x.size() ? x[i] : dy;
      for (int64_t j = 0; j < t.numel(); ++j) places.push_back({i, j});
    }
    const auto spoiled = [&](const Place& p, at::ScalarType dtype) {
      std::pair<Tensors, at::Tensor> out;
      for (const auto& t : x) out.first.push_back(t.to(dtype, false, /*copy=*/true));
      out.second = dy.to(dtype, false, /*copy=*/true);
      if (p.at >= 0) (p.input < x.size() ? out.first[p.input] : out.second).view(-1)[p.at] = NAN;
      return out;
    };

    for (const auto& p : places) {
      const auto [exact, exact_dy] = spoiled(p, at::kDouble);
      const auto wanted = nans(run_oracle(k, exact, exact_dy));
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        // If Lathe's kernels do not support the dtype on this CPU, ATen's attention runs, which
        // loses some NaNs.
        if (k.op == "attention" && !gemm_ready(element_of(dtype))) continue;
        const auto [low, low_dy] = spoiled(p, dtype);
        on_every_set([&](const std::string& set) {
          Tensors got;
          const at::Tensor up = k.op == "linear_cross_entropy" ? low_dy.to(at::kFloat) : low_dy;
          got = nans(run_ours(k, low, up));
          for (size_t i = 0; i < got.size(); ++i) {
            const bool right =
                k.more && p.at >= 0
                    ? wanted[i].logical_and(got[i].logical_not()).sum().item<int64_t>() == 0
                    : wanted[i].equal(got[i]);
            if (right) continue;
            auto& [count, first] =
                problems[str(dtype_name(dtype), " on ", set, ", a NaN in ",
                             p.input < x.size() ? str("input ", p.input) : "the cotangent", ", ",
                             i == 0 ? "the result" : str("gradient ", i - 1))];
            if (count++ > 0) continue;
            first = str("at ", p.at, " gives ", got[i].sum().item<int64_t>(), " NaNs instead of ",
                        wanted[i].sum().item<int64_t>());
          }
        });
      }
    }

    for (const auto& [where, what] : problems)
      FAIL_CHECK(k.op << " " << where << ": wrong for " << what.first << " positions; "
                      << what.second);
  }
  SUCCEED("all compared");
}

TEST_CASE("a norm whose sum of squares overflows is right or NaN, not zero", "[nan_propagation]") {
  const at::Tensor big = torch::tensor({1e20, -1e20, 3e20, 2e20}, at::kFloat).view({1, 4});
  const at::Tensor wanted = torch::layer_norm(big.to(at::kDouble), {4});
  with_and_without([&](const std::string& kernels) {
    on_every_set([&](const std::string& set) {
      const at::Tensor y = layer_norm(Variable(big), {}, {}).data();
      INFO(kernels << " on " << set << ": " << y);
      // The tolerance allows for float32 roundings, and for cancellation in the mean.
      CHECK(
          (y.isnan().all().item<bool>() || torch::allclose(y.to(at::kDouble), wanted, 1e-5, 1e-5)));
    });
  });
}

/// Returns the gradient of x through y = f(x) for the cotangent `dy`.
template <class F>
at::Tensor slope(const at::Tensor& x, const at::Tensor& dy, F&& f) {
  const Variable in = Variable::parameter(x);
  return grad(f(in), {in}, Variable(dy))[0].data();
}

TEST_CASE("relu's gradient is 0 at dead units even for infinite cotangents, and flows at NaN units",
          "[nan_propagation]") {
  const at::Tensor x = torch::tensor({-1.0, 2.0, 0.0, static_cast<double>(NAN)}, at::kFloat);
  const at::Tensor dy = torch::tensor(
      {static_cast<double>(INFINITY), static_cast<double>(INFINITY), 3.0, 5.0}, at::kFloat);
  const at::Tensor dx = slope(x, dy, [](const Variable& v) { return relu(v); });
  INFO(dx);
  CHECK(dx[0].item<float>() == 0);
  CHECK(dx[1].item<float>() == INFINITY);
  CHECK(dx[2].item<float>() == 0);
  CHECK(dx[3].item<float>() == 5);
}

TEST_CASE("x^0 has gradient zero even for an infinite cotangent", "[nan_propagation]") {
  const at::Tensor x = torch::tensor({0.0, 2.0, -1.0}, at::kFloat),
                   dy = torch::full({3}, INFINITY, at::kFloat);
  const at::Tensor dx = slope(x, dy, [](const Variable& v) { return pow(v, 0); });
  INFO(dx);
  CHECK(dx.eq(0).all().item<bool>());
}

TEST_CASE("gelu far from zero is 0 or the identity, and its derivative 0 or 1",
          "[nan_propagation]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor u = torch::tensor({-1e13, 1e13, -1e14, 1e14, -1e30, 1e30}, dtype).view({6, 1});
    const at::Tensor dy = torch::full({6, 1}, 0.75).to(dtype), one = torch::ones({1, 1}, dtype),
                     zero = torch::zeros({1}, dtype);
    const at::Tensor wanted = torch::where(u.gt(0), dy, torch::zeros_like(dy));

    const auto check = [&](const std::string& what, auto&& f) {
      with_and_without([&](const std::string& kernels) {
        on_every_set([&](const std::string& set) {
          const at::Tensor y = f(Variable(u)).data(), dx = slope(u, dy, f);
          INFO(what << " " << dtype_name(dtype) << ", " << kernels << " on " << set << ", y:\n"
                    << y << "\ndx:\n"
                    << dx);
          // The reciprocal on AVX2 is off by 4 units in the last place, and 1 / e^88, where e^x
          // saturates, is not exactly 0.
          CHECK(torch::allclose(y, torch::where(u.gt(0), u, torch::zeros_like(u)), 1e-6, 1e-30));
          CHECK(torch::allclose(dx, wanted, 1e-6, 1e-30));
        });
      });
    };

    check("gelu tanh", [](const Variable& v) { return gelu(v); });
    check("gelu exact", [](const Variable& v) { return gelu(v, Gelu::exact); });
    check("linear_gelu",
          [&](const Variable& v) { return linear_gelu(v, Variable(one), Variable(zero)); });
  }
}

TEST_CASE("silu far from zero is 0 or the identity, in swiglu too", "[nan_propagation]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = torch::tensor({-1e4, 1e4, -1e13, 1e13, -1e30, 1e30}, dtype).view({6, 1});
    const at::Tensor gated = torch::cat({a, torch::ones_like(a)}, 1);
    with_and_without([&](const std::string& kernels) {
      on_every_set([&](const std::string& set) {
        const at::Tensor plain = silu(Variable(a)).data(), y = swiglu(Variable(gated)).data();
        INFO(dtype_name(dtype) << ", " << kernels << " on " << set << ":\n" << plain << "\n" << y);
        const at::Tensor wanted = torch::where(a.gt(0), a, torch::zeros_like(a));
        CHECK(torch::allclose(plain, wanted, 1e-6, 1e-30));
        CHECK(torch::allclose(y, wanted, 1e-6, 1e-30));
      });
    });
  }
}

TEST_CASE("attention without Lathe's kernels is NaN if all queries, keys or values are NaN",
          "[nan_propagation]") {
  constexpr int64_t heads = 2, width = 8, c = heads * width;
  for (const int64_t time : {1, 5, 40, 600}) {
    for (const int64_t part : {0, 1, 2}) {  // q, k, v
      at::Tensor qkv =
          torch::sin(torch::arange(time * 3 * c).to(at::kFloat)).view({1, time, 3 * c});
      qkv.slice(2, part * c, (part + 1) * c).fill_(std::nan(""));
      use_kernels(false);
      const at::Tensor y = attention(Variable(qkv), heads).data();
      use_kernels(true);
      INFO("time " << time << ", NaN in part " << part);
      CHECK(y.isnan().all().item<bool>());
    }
  }
}

TEST_CASE("ignored rows change neither loss nor gradients, even if they are not finite",
          "[nan_propagation]") {
  const double wanted = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0)) - 2;  // 1.4076
  const at::Tensor targets = longs({-100, 1});
  const auto logits = [](double first) {
    return torch::tensor({first, 0.0, 0.0, 1.0, 2.0, 3.0}, at::kFloat).view({2, 3});
  };
  const at::Tensor counted = logits(0).slice(0, 1).to(at::kDouble).softmax(1) -
                             torch::tensor({0.0, 1.0, 0.0}, at::kDouble);
  with_and_without([&](const std::string& kernels) {
    for (const double first : {-INFINITY, INFINITY, NAN}) {
      INFO(kernels << ", an ignored logit of " << first);
      const Variable x = Variable::parameter(logits(first));
      const Variable loss = cross_entropy(x, targets);
      const at::Tensor dx = grad(loss, {x})[0].data();
      CHECK(loss.item() == Approx(wanted).epsilon(1e-6));
      CHECK(dx[0].eq(0).all().item<bool>());
      CHECK(torch::allclose(dx.slice(0, 1).to(at::kDouble), counted, 1e-5, 1e-6));
    }

    // Test the same for linear_cross_entropy(). The ignored row is finite, but its logits are inf,
    // NaN and inf. The logits of the other row are 1, 2 and 3.
    const at::Tensor w = torch::tensor({1.0, 1.0, -2.0, 6.0, 3.0, 3.0}, at::kFloat).view({3, 2});
    const auto head = [&](double big) {
      const Variable x =
          Variable::parameter(torch::tensor({big, big, 0.5, 0.5}, at::kFloat).view({2, 2}));
      const Variable weight = Variable::parameter(w);
      const Variable loss = linear_cross_entropy(x, weight, targets);
      const auto g = grad(loss, {x, weight});
      return std::tuple(loss.item(), g[0].data(), g[1].data());
    };

    const auto [loss, dx, dw] = head(3e38);
    const auto [loss_0, dx_0, dw_0] = head(0);
    INFO(kernels << ", dx:\n" << dx << "\ndw:\n" << dw);
    CHECK(loss == Approx(wanted).epsilon(1e-6));
    CHECK(loss_0 == Approx(wanted).epsilon(1e-6));
    CHECK(dx[0].eq(0).all().item<bool>());
    CHECK(dx.equal(dx_0));
    CHECK(dw.equal(dw_0));  // zero gradients times finite values add nothing

    // A NaN in x itself reaches the weight's gradient by 0 * NaN, but neither the loss nor x's
    // gradient.
    const auto [loss_nan, dx_nan, dw_nan] = head(NAN);
    CHECK(loss_nan == Approx(wanted).epsilon(1e-6));
    CHECK(dx_nan.equal(dx_0));
    CHECK(dw_nan.isnan().any().item<bool>());
  });
}

}  // namespace
