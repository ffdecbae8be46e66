// Implements linear layers that are fused with adjacent ops, where kernels exist for this: a layer
// with its GELU, the two layers of a SwiGLU, and the projections to queries, keys and values.
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <utility>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/linear_gpu.h"
#include "autograd/ops/linear_passes.h"
#include "autograd/ops/plain.h"
#include "autograd/ops/product.h"
#include "core/kernels/activation.h"

namespace lathe {
namespace {

// A linear layer and its GELU (tanh form). Used only where kernels exist for this op.
struct LinearGelu {
  static constexpr OpInfo info{.name = "linear_gelu", .amp = Amp::low, .optional = inputs_at({2})};
  static constexpr std::array policies{Amp::low, Amp::low, Amp::promote};
  at::ScalarType weight_grad = at::kFloat;
  Needs<3> needs{};
  Saved x = Saved::input(0), weight = Saved::input(1), bias = Saved::input(2),
        before = Saved::activation();

  // y = gelu(u), u = x W^T + b
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias_) {
    check_linear(x_, weight_, bias_);
    x = x_;
    weight = weight_;
    bias = bias_;
    at::Tensor u;
    at::Tensor y = x_.is_cuda() ? gpu_linear_gelu(x_, weight_, bias_, u)
                                : linear_pass(x_, weight_, bias_, {}, Activation::gelu,
                                              needs[0] || needs[1] || needs[2] ? &u : nullptr);
    before = u;
    return y;
  }
  // In low precision, `before` holds rounded values, but forward() computes y from the unrounded
  // values, so result() would not return the bits that forward() returned.
  bool has_result() const {
    return before.defined() && before.data().is_cpu() && before.data().scalar_type() == at::kFloat;
  }
  at::Tensor result() const {
    const at::Tensor& u = before.data();
    at::Tensor y = at::empty_like(u);
    gelu_forward(u.const_data_ptr(), y.mutable_data_ptr(), Element::f32, u.numel());
    bump_version(y);
    return y;
  }
  // du = dy gelu'(u), then as for a linear layer
  Grads<3> backward(const at::Tensor& dy_, Needs<3> needs, GradSlots& slots) const {
    at::Tensor db;  // computed by the kernel for du on a GPU, and by the matmul for dW on a CPU
    const at::Tensor du = dy_.is_cuda()
                              ? gpu_gelu_backward(before.data(), dy_, needs[2] ? &db : nullptr)
                              : gelu_gradient(dy_.contiguous());
    LinearGradients layer{.dy = du,
                          .weight = weight.data(),
                          .weight_grad = weight_grad,
                          .slot = 1,
                          .need_weight = needs[1],
                          .need_bias = needs[2] && !db.defined()};
    const at::Tensor dx = linear_backward(x.data(), {&layer, 1}, needs[0], slots);
    return {dx, layer.dw, db.defined() ? db : layer.db};
  }
  at::Tensor gelu_gradient(const at::Tensor& dy) const {
    const at::Tensor& u = before.data();
    at::Tensor du = at::empty_like(u);
    gelu_backward(u.const_data_ptr(), dy.const_data_ptr(), du.mutable_data_ptr(),
                  element_of(u.scalar_type()), u.numel());
    return du;
  }
  Grads<3, Variable> backward(const Variable& dy, Needs<3> needs) const {
    return plain_gradients<3>({x.as<Variable>(), weight.as<Variable>(), bias.as<Variable>()}, needs,
                              {dy}, [](const std::vector<Variable>& in) {
                                return std::vector{gelu(linear(in[0], in[1], in[2]))};
                              });
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor& bias,
                       const at::Tensor& y) {
    OpFlops f = linear_flops(x, bias, {}, y);
    f.forward.other += 8 * static_cast<double>(y.numel());
    f.backward.other += 14 * static_cast<double>(y.numel());
    return f;
  }
  static Flops needed(Flops both, Needs<3> needs) { return needed_flops(both, needs); }
};

// The two linear layers of a SwiGLU and the product of their outputs. Used only where kernels exist
// for this op.
struct LinearSwiglu {
  static constexpr OpInfo info{.name = "linear_swiglu", .amp = Amp::low};
  at::ScalarType gate_grad = at::kFloat, up_grad = at::kFloat;
  Needs<3> needs{};
  Saved x = Saved::input(0), gate = Saved::input(1), up = Saved::input(2), a = Saved::activation(),
        b = Saved::activation();

  // y = silu(a) b, a = x G^T, b = x U^T
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& gate_, const at::Tensor& up_) {
    check_linear(x_, gate_, {});
    check_linear(x_, up_, {});
    LATHE_CHECK(gate_.sizes() == up_.sizes(), "gate and up must have the same shape");
    x = x_;
    gate = gate_;
    up = up_;
    if (x_.is_cuda()) {
      a = aten_linear(x_, gate_, {});
      b = aten_linear(x_, up_, {});
      return gpu_swiglu(a.data(), b.data());
    }
    const at::Tensor left = linear_pass(x_, gate_, {}, {}, Activation::none, nullptr);
    at::Tensor y = at::empty_like(left), right;
    const at::Tensor in = x_.contiguous(), w = up_.contiguous();
    Epilogue e{.out = matrix_of(y), .activation = Activation::swiglu, .gate = matrix_of(left)};
    if (needs[0] || needs[1] || needs[2]) e.before = matrix_of(right = at::empty_like(y));
    gemm_nt(matrix_of(in), matrix_of(w), in.numel() / w.size(1), w.size(0), w.size(1), e);
    bump_version(y);
    a = left;
    b = right;
    return y;
  }
  bool has_result() const {
    return b.defined() && (b.data().is_cuda() || b.data().scalar_type() == at::kFloat);
  }
  at::Tensor result() const {
    if (a.data().is_cuda()) return gpu_swiglu(a.data(), b.data());
    at::Tensor y = at::empty_like(a.data());
    swiglu_product(a.data().const_data_ptr(), b.data().const_data_ptr(), y.mutable_data_ptr(),
                   Element::f32, y.numel());
    bump_version(y);
    return y;
  }
  // s = sigmoid(a): da = dy b (s + a s (1 - s)), db = dy a s; dx = da G + db U, dG = da^T x, dU =
  // db^T x
  Grads<3> backward(const at::Tensor& dy_, Needs<3> needed, GradSlots& slots) const {
    const auto [da, db] =
        dy_.is_cuda() ? gpu_swiglu_backward(a.data(), b.data(), dy_) : product_gradients(dy_);
    LinearGradients layers[]{{.dy = da,
                              .weight = gate.data(),
                              .weight_grad = gate_grad,
                              .slot = 1,
                              .need_weight = needed[1]},
                             {.dy = db,
                              .weight = up.data(),
                              .weight_grad = up_grad,
                              .slot = 2,
                              .need_weight = needed[2]}};
    const at::Tensor dx = linear_backward(x.data(), layers, needed[0], slots);
    return {dx, layers[0].dw, layers[1].dw};
  }
  std::pair<at::Tensor, at::Tensor> product_gradients(const at::Tensor& dy_) const {
    const at::Tensor dy = dy_.to(a.data().scalar_type()).contiguous();
    at::Tensor da = at::empty_like(a.data()), db = at::empty_like(a.data());
    const int64_t h = dy.size(-1);
    swiglu_backward(a.data().const_data_ptr(), b.data().const_data_ptr(), dy.const_data_ptr(),
                    da.mutable_data_ptr(), db.mutable_data_ptr(), element_of(dy.scalar_type()),
                    dy.numel() / h, h, h);
    bump_version(da);
    bump_version(db);
    return {da, db};
  }
  Grads<3, Variable> backward(const Variable& dy, Needs<3> needed) const {
    return plain_gradients<3>(
        {x.as<Variable>(), gate.as<Variable>(), up.as<Variable>()}, needed, {dy},
        [](const std::vector<Variable>& in) {
          return std::vector{silu(linear(in[0], in[1])) * linear(in[0], in[2])};
        });
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                       const at::Tensor& y) {
    const auto n = static_cast<double>(y.numel()),
               product = 4 * n * static_cast<double>(x.size(-1));
    return {.forward = {product, 6 * n}, .backward = {2 * product, 10 * n}};
  }
  static Flops needed(Flops both, Needs<3> needs) {
    // Of the four matrix products, two compute dx, and two compute the gradient of one weight each.
    both.matmul *= ((needs[0] ? 2 : 0) + (needs[1] ? 1 : 0) + (needs[2] ? 1 : 0)) / 4.0;
    return both;
  }
};

// The projections to queries, keys and values. Used only where kernels exist for this op.
struct LinearQkv {
  static constexpr OpInfo info{
      .name = "linear_qkv", .amp = Amp::low, .optional = inputs_at({4, 5, 6})};
  static constexpr std::array policies{Amp::low,     Amp::low,     Amp::low,    Amp::low,
                                       Amp::promote, Amp::promote, Amp::promote};
  std::array<at::ScalarType, 3> weight_grad;
  Saved x = Saved::input(0);
  std::array<Saved, 3> weights{Saved::input(1), Saved::input(2), Saved::input(3)};
  std::array<Saved, 3> biases{Saved::input(4), Saved::input(5), Saved::input(6)};

  // y_i = x W_i^T + b_i
  std::vector<at::Tensor> forward(const at::Tensor& x_, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& q_bias,
                                  const at::Tensor& k_bias, const at::Tensor& v_bias) {
    x = x_;
    std::vector<at::Tensor> y;
    for (const auto& [weight, bias] :
         {std::pair(q, q_bias), std::pair(k, k_bias), std::pair(v, v_bias)}) {
      check_linear(x_, weight, bias);
      weights[y.size()] = weight;
      biases[y.size()] = bias;
      y.push_back(x_.is_cuda() ? aten_linear(x_, weight, bias)
                               : linear_pass(x_, weight, bias, {}, Activation::none, nullptr));
    }
    return y;
  }
  // dx = sum of dy_i W_i, dW_i = dy_i^T x, db_i = sum of dy_i over the rows
  Grads<7> backward(const GradList<at::Tensor>& dy, Needs<7> needs, GradSlots& slots) const {
    const auto layer = [&](size_t i) {
      return LinearGradients{.dy = dy[i],
                             .weight = weights[i].data(),
                             .weight_grad = weight_grad[i],
                             .slot = 1 + i,
                             .need_weight = needs[1 + i],
                             .need_bias = needs[4 + i]};
    };
    LinearGradients of[]{layer(0), layer(1), layer(2)};
    const at::Tensor dx = linear_backward(x.data(), of, needs[0], slots);
    return {dx, of[0].dw, of[1].dw, of[2].dw, of[0].db, of[1].db, of[2].db};
  }
  Grads<7, Variable> backward(const GradList<Variable>& dy, Needs<7> needs) const {
    const auto of = [](const std::array<Saved, 3>& all, size_t i) { return all[i].as<Variable>(); };
    return plain_gradients<7>({x.as<Variable>(), of(weights, 0), of(weights, 1), of(weights, 2),
                               of(biases, 0), of(biases, 1), of(biases, 2)},
                              needs, dy, [](const std::vector<Variable>& in) {
                                return std::vector{linear(in[0], in[1], in[4]),
                                                   linear(in[0], in[2], in[5]),
                                                   linear(in[0], in[3], in[6])};
                              });
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, const at::Tensor& q_bias, const at::Tensor& k_bias,
                       const at::Tensor& v_bias, const at::Tensor&) {
    OpFlops all;
    for (const auto& [weight, bias] :
         {std::pair(q, q_bias), std::pair(k, k_bias), std::pair(v, v_bias)}) {
      const auto n = static_cast<double>(rows_of(x) * weight.size(0)), add = bias.defined() ? n : 0;
      const double product = 2 * n * static_cast<double>(x.size(-1));
      all.forward += {product, add}, all.backward += {2 * product, add};
    }
    return all;
  }
  static Flops needed(Flops both, Needs<7> needs) {  // either all weights need a gradient or none
    return needed_flops(both, Needs<2>{needs[0], needs[1]});
  }
};

}  // namespace

Variable linear_gelu(const Variable& x, const Variable& weight, const Variable& bias) {
  require_defined("linear_gelu", {&x, &weight});
  if (!can_fuse_linear_cpu(x, weight) && !can_fuse_linear_gpu(x, weight))
    return gelu(linear(x, weight, bias));
  return apply(LinearGelu{.weight_grad = kernel_grad_dtype(weight)}, x, weight, bias);
}

Variable linear_swiglu(const Variable& x, const Variable& gate, const Variable& up) {
  require_defined("linear_swiglu", {&x, &gate, &up});
  const bool on_cpu = can_fuse_linear_cpu(x, gate) && can_fuse_linear_cpu(x, up),
             on_gpu = can_fuse_linear_gpu(x, gate) && can_fuse_linear_gpu(x, up);
  if (!on_cpu && !on_gpu) return silu(linear(x, gate)) * linear(x, up);
  return apply(LinearSwiglu{.gate_grad = kernel_grad_dtype(gate), .up_grad = kernel_grad_dtype(up)},
               x, gate, up);
}

std::array<Variable, 3> linear_qkv(const Variable& x, const std::array<Variable, 3>& weights,
                                   const std::array<Variable, 3>& biases) {
  require_defined("linear_qkv", {&x, &weights[0], &weights[1], &weights[2]});
  const auto& [q, k, v] = weights;
  const auto fits = [&](const Variable& w) {
    return (can_fuse_linear_cpu(x, w) || can_fuse_linear_gpu(x, w)) &&
           w.requires_grad() == q.requires_grad();
  };
  if (!std::ranges::all_of(weights, fits))
    return {linear(x, q, biases[0]), linear(x, k, biases[1]), linear(x, v, biases[2])};
  const LinearQkv op{
      .weight_grad = {kernel_grad_dtype(q), kernel_grad_dtype(k), kernel_grad_dtype(v)}};
  const std::vector<Variable> y = apply(op, x, q, k, v, biases[0], biases[1], biases[2]);
  return {y[0], y[1], y[2]};
}

}  // namespace lathe
