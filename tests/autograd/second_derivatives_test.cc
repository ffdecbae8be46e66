// Tests of second derivatives of fused ops, products with Jacobians and Hessians, and a training
// step with a gradient penalty.
#include "amp/amp.h"
#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/fp8.h"
#include "autograd/functional.h"
#include "autograd/gradcheck.h"
#include "autograd/op.h"
#include "autograd/ops.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/models/gpt.h"
#include "optim/optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;
using namespace lathe::test;
using V = const std::vector<Variable>&;

TEST_CASE("every row of the op table checks second derivatives", "[second_derivatives]") {
  for (const OpCase& row : op_table()) {
    INFO(row.op << " (" << row.label << ")");
    CHECK(row.second);
  }
}

/// Returns second derivatives: the gradients with respect to x of a weighted sum of the gradients
/// of a weighted sum of f(x).
std::vector<at::Tensor> second_of(const std::function<Variable(V)>& f,
                                  const std::vector<at::Tensor>& x) {
  std::vector<Variable> in;
  for (const auto& t : x) in.push_back(Variable::parameter(t));
  const Variable y = f(in);
  const at::Tensor dy =
      torch::linspace(-1, 1, y.numel(), at::kDouble).view(y.sizes()).to(y.dtype());
  const auto first = grad(y, in, Variable(dy), /*create_graph=*/true);
  Variable s;
  for (size_t i = 0; i < in.size(); ++i) {
    const at::Tensor w =
        torch::linspace(1, -1, in[i].numel(), at::kDouble).view(in[i].sizes()).to(in[i].dtype());
    const Variable term = sum(first[i] * Variable(w));
    s = s.defined() ? s + term : term;
  }
  std::vector<at::Tensor> out;
  for (const Variable& g : grad(s, in)) out.push_back(g.data());
  return out;
}

TEST_CASE("second derivatives of fused ops in float32 agree with those in float64",
          "[second_derivatives]") {
  const at::Tensor targets = torch::randint(40, {12}),
                   rope_table = Rotary(8).rope_table(torch::arange(8));
  struct Fused {
    std::string op;
    std::vector<std::vector<int64_t>> shapes;
    std::function<Variable(V)> f;
  };

  const std::vector<Fused> all{
      {"linear_gelu",
       {{12, 16}, {24, 16}, {24}},
       [](V v) { return linear_gelu(v[0], v[1], v[2]); }},
      {"linear_cross_entropy",
       {{12, 16}, {40, 16}},
       [&](V v) { return linear_cross_entropy(v[0], v[1], targets); }},
      {"layer_norm", {{3, 16}, {16}, {16}}, [](V v) { return layer_norm(v[0], v[1], v[2]); }},
      {"rms_norm", {{3, 16}, {16}}, [](V v) { return rms_norm(v[0], v[1]); }},
      {"swiglu", {{3, 32}}, [](V v) { return swiglu(v[0]); }},
      {"attention", {{2, 8, 48}}, [](V v) { return attention(v[0], 2); }},
      {"grouped_attention",
       {{2, 8, 32}, {2, 8, 16}, {2, 8, 16}},
       [](V v) { return attention(v[0], v[1], v[2], 4, 2); }},
      {"linear_swiglu",
       {{12, 16}, {24, 16}, {24, 16}},
       [](V v) { return linear_swiglu(v[0], v[1], v[2]); }},
      {"linear_qkv",
       {{12, 16}, {24, 16}, {8, 16}, {8, 16}},
       [](V v) {
         const auto [q, k, y] = linear_qkv(v[0], {v[1], v[2], v[3]});
         return cat({q, k, y}, -1);
       }},
      {"grouped_attention, rotated",
       {{2, 8, 32}, {2, 8, 16}, {2, 8, 16}},
       [&](V v) { return attention(v[0], v[1], v[2], 4, 2, {}, rope_table); }},
      {"batch_norm", {{6, 5, 3}, {5}, {5}}, [](V v) { return batch_norm(v[0], v[1], v[2]).y; }},
      {"lstm_layer",
       {{3, 16, 5}, {32, 5}, {32}, {32, 8}, {16, 8}, {16, 8}},
       [](V v) { return lstm_layer(v[0], v[1], v[2], v[3], v[4], v[5], false).first; }},
      {"lstm_cell", {{4, 32}, {4, 8}}, [](V v) { return lstm_cell(v[0], v[1]).first; }},
      {"gru_cell", {{4, 24}, {4, 24}, {4, 8}}, [](V v) { return gru_cell(v[0], v[1], v[2]); }}};

  for (const Fused& fused : all) {
    INFO(fused.op);
    std::vector<at::Tensor> low, wide;
    for (const auto& shape : fused.shapes) {
      low.push_back(torch::randn(shape));
      wide.push_back(low.back().to(at::kDouble));
    }

    const auto ours = second_of(fused.f, low), wanted = second_of(fused.f, wide);
    for (size_t i = 0; i < ours.size(); ++i) {
      REQUIRE(ours[i].defined() == wanted[i].defined());
      if (!ours[i].defined()) continue;  // for example, a bias on which no first derivative depends
      const double error = (ours[i].to(at::kDouble) - wanted[i]).abs().max().item<double>();
      CHECK(ours[i].scalar_type() == at::kFloat);
      CHECK(error <= 1e-4 * std::max(1.0,
                                     wanted[i].abs().max().item<double>()));  // the error of about
                                                                              // 1000 roundings
    }
  }

  // If one Variable is two inputs of a fused op, each input has its own gradient.
  const auto twice = [](V v) { return gru_cell(v[0], v[0], slice(v[0], 1, 0, 8)); };
  const at::Tensor x = torch::randn({4, 24}, at::kDouble);
  gradcheck(
      [&](const std::vector<Variable>& v) {
        return grad(sum(twice(v) * twice(v)), v, {}, true)[0];
      },
      std::vector{Variable(x)});
}

TEST_CASE("second derivatives of an fp8 layer are near the exact layer's second derivatives",
          "[second_derivatives]") {
  const Variable x = Variable::parameter(torch::randn({16, 16})),
                 w = Variable::parameter(torch::randn({16, 16}));
  w.leaf().precision.fp8 = std::make_shared<Fp8Scaling>();
  const auto penalty = [&](at::ScalarType dtype) {
    w.leaf().grad.reset();
    Variable y;
    {
      const Autocast autocast(dtype);
      y = linear(x, w);
    }
    const Variable dx =
        grad(sum(cast(y, at::kFloat) * cast(y, at::kFloat)), {x}, {}, /*create_graph=*/true)[0];
    backward(sum(dx * dx));
    return w.grad().clone();
  };
  const at::Tensor exact = penalty(at::kFloat), rounded = penalty(at::kFloat8_e4m3fn);
  // e4m3 keeps 4 bits. Each of three factors has a relative error of 2^-4. These errors partly
  // cancel in sums of 16 terms.
  CHECK((exact - rounded).norm().item<double>() < 0.15 * exact.norm().item<double>());
}

struct FusedAlone {
  static constexpr OpInfo info{.name = "wrong_fused"};
  at::Tensor forward(const at::Tensor& x) { return x * 2; }
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const { return {dy * 2}; }
};

TEST_CASE("a custom fused op without a backward for Variables is an error under create_graph",
          "[second_derivatives]") {
  const Variable x = Variable::parameter(torch::ones({2}));
  CHECK_THAT(error_of([&] { grad(sum(apply(FusedAlone{}, x)), {x}, {}, true); }),
             ContainsSubstring("wrong_fused: ") && ContainsSubstring("second derivatives"));
}

TEST_CASE("vjp, jvp and hvp agree with central differences, with LibTorch and with each other",
          "[second_derivatives]") {
  const auto f = [](V v) { return cat({matmul(v[0], tanh(v[1])), v[0] * v[0]}, 1); };
  const std::vector<Variable> x{Variable(torch::randn({2, 3}, at::kDouble)),
                                Variable(torch::randn({3, 4}, at::kDouble))};
  const std::vector<Variable> u{Variable(torch::randn({2, 3}, at::kDouble)),
                                Variable(torch::randn({3, 4}, at::kDouble))};
  const auto shifted = [&](double eps) {
    return std::vector{Variable(x[0].data() + eps * u[0].data()),
                       Variable(x[1].data() + eps * u[1].data())};
  };
  const double eps = 1e-6;
  const auto [y, product] = jvp(f, x, u);
  CHECK(y.data().equal(f(x).data()));
  const at::Tensor difference = (f(shifted(eps)).data() - f(shifted(-eps)).data()) / (2 * eps);
  CHECK(product.data().allclose(difference, 1e-6, 1e-8));

  const Variable v(torch::randn(y.sizes(), at::kDouble));
  const auto pulled = vjp(f, x, v).second;
  const double left = (v.data() * product.data()).sum().item<double>();
  double right = 0;
  for (size_t i = 0; i < 2; ++i) right += (pulled[i].data() * u[i].data()).sum().item<double>();
  CHECK(left == Approx(right).epsilon(1e-12));
  CHECK(!pulled[0].requires_grad());

  const auto scalar = [&](V in) { return sum(exp(f(in) * 0.3)); };
  const auto curved = hvp(scalar, x, u).second;
  const auto above = vjp(scalar, shifted(eps)).second, below = vjp(scalar, shifted(-eps)).second;
  const auto their = [&](const std::vector<at::Tensor>& t) {
    return (torch::cat({t[0].matmul(t[1].tanh()), t[0] * t[0]}, 1) * 0.3).exp().sum();
  };
  const std::vector<at::Tensor> tx{x[0].data().clone().requires_grad_(),
                                   x[1].data().clone().requires_grad_()};
  const auto first = torch::autograd::grad({their(tx)}, tx, {}, true, true);
  const auto wanted =
      torch::autograd::grad({(first[0] * u[0].data()).sum() + (first[1] * u[1].data()).sum()}, tx);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(curved[i].data().allclose((above[i].data() - below[i].data()) / (2 * eps), 1e-5, 1e-7));
    CHECK(curved[i].data().allclose(wanted[i], 1e-11, 1e-12));
  }
  // Derivatives are zero for inputs on which a function does not depend, and second derivatives are
  // also zero for inputs on which the function depends linearly.
  CHECK(vjp([](V in) { return sum(in[0]); }, x).second[1].data().eq(0).all().item<bool>());
  CHECK(hvp([](V in) { return sum(in[0]) + sum(in[1]); }, x, u)
            .second[0]
            .data()
            .eq(0)
            .all()
            .item<bool>());
  CHECK(jvp([](V) { return ones({2}, at::kDouble); }, x, u).second.data().eq(0).all().item<bool>());
  CHECK_THAT(error_of([&] { jvp(f, x, {u[0]}); }),
             ContainsSubstring("jvp: 1 vector ") && ContainsSubstring("2 inputs"));
  CHECK_THAT(error_of([&] { jvp(f, x, {u[0], u[0]}); }), ContainsSubstring("jvp: vector 1") &&
                                                             ContainsSubstring("float64[2,3]") &&
                                                             ContainsSubstring("float64[3,4]"));
  CHECK_THAT(error_of([&] { hvp(f, x, u); }),
             ContainsSubstring("hvp: ") && ContainsSubstring("float64[2,7]"));
}

TEST_CASE("a Hessian-vector product through a GPT agrees with differences of its gradient",
          "[second_derivatives]") {
  GPTConfig c;
  c.n_layer = 2;
  c.n_head = 2;
  c.n_embd = 8;
  c.block_size = 6;
  c.vocab_size = 7;
  GPT model(c);
  initialize(model, Init::gpt2, 1, 2);
  move_to(model, at::kCPU, at::kDouble);
  const at::Tensor ids = torch::randint(7, {2, 6}), targets = torch::randint(7, {2, 6});

  std::vector<Variable> ps;
  std::vector<at::Tensor> u;
  for (const auto& p : parameters(model)) {
    p.parameter.data().add_(torch::randn_like(p.parameter.data()) * 0.2);
    ps.push_back(p.parameter);
    u.push_back(torch::randn_like(p.parameter.data()));
  }
  const auto loss = [&] { return head_loss(model, ids, targets); };

  // The Hessian times u is the gradient of the dot product of the gradient and u.
  Variable dot;
  const auto first = grad(loss(), ps, {}, /*create_graph=*/true);
  for (size_t i = 0; i < ps.size(); ++i) {
    const Variable term = sum(first[i] * Variable(u[i]));
    dot = dot.defined() ? dot + term : term;
  }
  const auto product = grad(dot, ps);

  const auto moved = [&](double by) {
    for (size_t i = 0; i < ps.size(); ++i) ps[i].data().add_(u[i], by);
    auto g = grad(loss(), ps);
    for (size_t i = 0; i < ps.size(); ++i) ps[i].data().sub_(u[i], by);
    return g;
  };

  const double eps = 1e-6;
  const auto above = moved(eps), below = moved(-eps);
  for (size_t i = 0; i < ps.size(); ++i) {
    const at::Tensor wanted = (above[i].data() - below[i].data()) / (2 * eps);
    CHECK((product[i].data() - wanted).abs().max().item<double>() <=
          1e-5 * std::max(1.0, wanted.abs().max().item<double>()));
  }
}

TEST_CASE("a step with a gradient penalty has the gradient of its complete loss",
          "[second_derivatives]") {
  // Gulrajani et al. 2017: the penalty (|d critic / d x| - 1)^2 is added to the critic's loss. The
  // layers are fused.
  struct Critic {
    Linear in{6, 16, true}, out{16, 1, true};
    LayerNorm norm{16, true};
    Variable operator()(const Variable& x) const { return out(gelu(norm(in(x)))); }
    void visit(Visit& v) {
      v("in", in);
      v("norm", norm);
      v("out", out);
    }
  };

  Critic critic;
  initialize(critic, Init::xavier_normal, 3);
  move_to(critic, at::kCPU, at::kDouble);
  const at::Tensor data = torch::randn({5, 6}, at::kDouble);
  const auto loss = [&] {
    const Variable x = Variable::parameter(data);
    const Variable y = critic(x);
    const Variable dx = grad(sum(y), {x}, {}, /*create_graph=*/true)[0];
    const Variable excess = sqrt(sum(dx * dx, -1)) - 1.0;
    return mean(y) + mean(excess * excess) * 10.0;
  };

  backward(loss());
  for (const auto& p : parameters(critic)) {
    INFO(p.path);
    const at::Tensor t = p.parameter.data().view(-1), g = p.parameter.grad().view(-1);
    for (int64_t i = 0; i < t.numel(); i += 7) {
      const double at = t[i].item<double>(), eps = 1e-6;
      t[i] = at + eps;
      const double above = loss().item();
      t[i] = at - eps;
      const double below = loss().item();
      t[i] = at;
      CHECK(g[i].item<double>() == Approx((above - below) / (2 * eps)).epsilon(1e-4).margin(1e-6));
    }
  }

  // The penalty also trains: the norm of the critic's gradient approaches 1.
  Optimizer optimizer({.kind = "adam", .weight_decay = 0}, parameters(critic));
  const auto penalty = [&] {
    const Variable x = Variable::parameter(data);
    const Variable dx = grad(sum(critic(x)), {x})[0];
    return (dx.data().norm(2, -1) - 1).pow(2).mean().item<double>();
  };

  const double before = penalty();
  for (int i = 0; i < 60; ++i) {
    zero_grad(critic);
    backward(loss());
    optimizer.step(1e-2);
  }
  CHECK(penalty() < 0.2 * before);
}

}  // namespace
