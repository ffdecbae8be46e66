// Implements an LSTM layer over a complete sequence. It is one op where the kernels of
// core/kernels/lstm.h apply, and otherwise a linear layer and lstm_cell() for each step. Shapes: T
// steps, B batch, C inputs, H units.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <tuple>

#include "autograd/ops.h"
#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/linear_passes.h"
#include "autograd/ops/plain.h"
#include "core/kernels/lstm.h"

namespace lathe {
namespace {

/// Computes lstm_layer() with a linear layer and lstm_cell() for each step.
std::pair<Variable, Variable> steps_of(const Variable& x, const Variable& weight_ih,
                                       const Variable& bias, const Variable& weight_hh, Variable h,
                                       Variable c, bool reverse) {
  // The projection of the inputs does not depend on the state, so one matrix product computes it
  // for all steps.
  const std::vector<Variable> x_gates = unbind(linear(x, weight_ih, bias));
  std::vector<Variable> all(x_gates.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t t = reverse ? all.size() - 1 - i : i;
    std::tie(h, c) = lstm_cell(linear(h, weight_hh, {}, x_gates[t]), c);
    all[t] = h;
  }
  return {stack(all), c};
}

struct LstmLayer {
  static constexpr OpInfo info{.name = "lstm_layer", .amp = Amp::low, .optional = inputs_at({2})};
  static constexpr std::array policies{Amp::low, Amp::low, Amp::promote,
                                       Amp::low, Amp::low, Amp::promote};
  bool reverse;
  std::array<at::ScalarType, 2> weight_grads;  // dtypes of dW_ih and dW_hh
  Saved x = Saved::input(0), weight_ih = Saved::input(1), bias = Saved::input(2),
        weight_hh = Saved::input(3), h = Saved::input(4), c = Saved::input(5);
  Saved gates = Saved::activation();  // [T, B, 4 H], before the activations of the gates
  Saved hidden = Saved::activation(), cells = Saved::activation();  // [T + 1, B, H], see LstmShape

  // [i f g o] = x_t W_ih^T + b + h W_hh^T:
  // c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c')
  std::vector<at::Tensor> forward(const at::Tensor& x_, const at::Tensor& weight_ih_,
                                  const at::Tensor& bias_, const at::Tensor& weight_hh_,
                                  const at::Tensor& h_, const at::Tensor& c_) {
    x = x_;
    weight_ih = weight_ih_;
    bias = bias_;
    const at::Tensor all = linear_pass(x_, weight_ih_, bias_, {}, Activation::none, nullptr),
                     w = weight_hh_.contiguous();
    weight_hh = w;

    const LstmShape shape = shape_of(all);
    const std::vector<int64_t> states{shape.steps + 1, shape.batch, shape.h};
    const at::Tensor hs = at::empty(states, all.options()),
                     cs = at::empty(states, all.options().dtype(at::kFloat));
    hs.select(0, shape.first()).copy_(h_);
    cs.select(0, shape.first()).copy_(c_);

    lstm_forward(shape, matrix_of(w), all.mutable_data_ptr(), hs.mutable_data_ptr(),
                 cs.mutable_data_ptr<float>());
    for (const at::Tensor& t : {all, hs, cs}) bump_version(t);
    gates = all;
    hidden = hs;
    cells = cs;
    h = hs.select(0, shape.first());
    c = cs.select(0, shape.first());
    return {hs.narrow(0, shape.after(0), shape.steps),
            cs.select(0, shape.last()).to(c_.scalar_type())};
  }

  // A step computes the gradients of its gates and states as lstm_cell() does. Each weight's
  // gradient is one matrix product over all steps and sequences.
  Grads<6> backward(const GradList<at::Tensor>& dy, Needs<6> needs, GradSlots& slots) const {
    const LstmShape shape = shape_of(gates.data());
    const at::Tensor& hs = hidden.data();
    const at::Tensor up = dy[0].defined() ? dy[0].to(hs.scalar_type()).contiguous() : dy[0],
                     dc_last = as_float(dy[1]);

    // If the saved tensors are freed after this pass, the gradients overwrite the gates: the kernel
    // reads each gate before it writes the gate's gradient.
    const at::Tensor& in = gates.data();
    const at::Tensor dgates = slots.frees_saved() ? in : at::empty_like(in),
                     dh = at::empty({shape.batch, shape.h}, hs.options()),
                     dc = at::empty({shape.batch, shape.h}, hs.options().dtype(at::kFloat));
    lstm_backward(shape, matrix_of(weight_hh.data()), in.const_data_ptr(),
                  cells.data().const_data_ptr<float>(),
                  up.defined() ? up.const_data_ptr() : nullptr, floats_of(dc_last),
                  dgates.mutable_data_ptr(), dh.mutable_data_ptr(), dc.mutable_data_ptr<float>());
    for (const at::Tensor& t : {dgates, dh, dc}) bump_version(t);

    LinearGradients ih{.dy = dgates,
                       .weight = weight_ih.data(),
                       .weight_grad = weight_grads[0],
                       .slot = 1,
                       .need_weight = needs[1],
                       .need_bias = needs[2]};
    const at::Tensor dx = linear_backward(x.data(), {&ih, 1}, needs[0], slots);
    LinearGradients hh{.dy = dgates,
                       .weight = weight_hh.data(),
                       .weight_grad = weight_grads[1],
                       .slot = 3,
                       .need_weight = needs[3]};
    linear_backward(hs.narrow(0, shape.before(0), shape.steps), {&hh, 1}, false, slots);
    return {dx, ih.dw, ih.db, hh.dw, dh, dc};
  }
  Grads<6, Variable> backward(const GradList<Variable>& dy, Needs<6> needs) const {
    return plain_gradients<6>(
        {x.as<Variable>(), weight_ih.as<Variable>(), bias.as<Variable>(), weight_hh.as<Variable>(),
         h.as<Variable>(), c.as<Variable>()},
        needs, dy, [&](const std::vector<Variable>& in) {
          const auto wide = [&](size_t i) { return in[i].defined() ? wide_of(in[i]) : in[i]; };
          const auto [y, last] =
              steps_of(wide(0), wide(1), wide(2), wide(3), wide(4), wide(5), reverse);
          return std::vector{y, last};
        });
  }

  static OpFlops flops(const at::Tensor& x, const at::Tensor& weight_ih, const at::Tensor& bias,
                       const at::Tensor& weight_hh, const at::Tensor&, const at::Tensor&,
                       const at::Tensor& y) {
    const auto n = static_cast<double>(rows_of(x) * weight_hh.size(0));
    const double product = 2 * n * static_cast<double>(weight_ih.size(1) + weight_hh.size(1)),
                 add = bias.defined() ? n : 0;
    OpFlops f = flops_each(y, 20, 40);
    f.forward += {product, add};
    f.backward += {2 * product, add};
    return f;
  }

 private:
  LstmShape shape_of(const at::Tensor& all_gates) const {
    return {.steps = all_gates.size(0),
            .batch = all_gates.size(1),
            .h = all_gates.size(2) / 4,
            .reverse = reverse};
  }
};

/// Returns whether LstmLayer supports these inputs. With fewer than 16 sequences there is too
/// little work to divide among threads, and for a single step packing the weight takes longer than
/// it saves.
bool is_fused(const Variable& x, const Variable& weight_ih, const Variable& weight_hh,
              const Variable& h, const Variable& c) {
  return can_fuse_linear_cpu(x, weight_ih) && can_fuse_linear_cpu(h, weight_hh) &&
         fused_linear_dtype(x, weight_ih) == fused_linear_dtype(h, weight_hh) &&
         kernel_dtype(c.dtype()) && x.size(0) > 1 && x.size(1) >= 16 && h.size(1) % 2 == 0;
}

}  // namespace

std::pair<Variable, Variable> lstm_layer(const Variable& x, const Variable& weight_ih,
                                         const Variable& bias, const Variable& weight_hh,
                                         const Variable& h, const Variable& c, bool reverse) {
  require_defined("lstm_layer", {&x, &weight_ih, &weight_hh, &h, &c});
  const at::IntArrayRef in = x.sizes(), state = h.sizes(), hh = weight_hh.sizes();
  LATHE_CHECK(
      in.size() == 3 && in[0] >= 1 && state.size() == 2 && state[0] == in[1] &&
          c.sizes() == state && hh == at::IntArrayRef({4 * state[1], state[1]}) &&
          weight_ih.sizes() == at::IntArrayRef({hh[0], in[2]}) &&
          (!bias.defined() || bias.sizes() == at::IntArrayRef({hh[0]})),
      "lstm_layer: needs x [T, B, C], weights [4 H, C] and [4 H, H], states [B, H] and, if it has "
      "one, a bias [4 H], not ",
      describe(x.data()), ", ", describe(weight_ih.data()), ", ", describe(weight_hh.data()), ", ",
      describe(h.data()), ", ", describe(c.data()),
      bias.defined() ? " and " + describe(bias.data()) : std::string());
  if (!is_fused(x, weight_ih, weight_hh, h, c))
    return steps_of(x, weight_ih, bias, weight_hh, h, c, reverse);

  const auto out =
      apply(LstmLayer{.reverse = reverse,
                      .weight_grads = {kernel_grad_dtype(weight_ih), kernel_grad_dtype(weight_hh)}},
            x, weight_ih, bias, weight_hh, h, c);
  return {out[0], out[1]};
}

}  // namespace lathe
