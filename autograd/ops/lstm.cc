// An LSTM layer over a whole sequence: one op where the kernels of core/kernels/lstm.h apply, else
// a linear layer and lstm_cell() for each step. Shapes: T steps, B batch, H units.
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

/// Computes lstm_layer() by ops for each step.
std::pair<Variable, Variable> steps_of(const Variable& x_gates, const Variable& weight, Variable h,
                                       Variable c, bool reverse) {
  const std::vector<Variable> steps = unbind(x_gates);
  std::vector<Variable> all(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t t = reverse ? steps.size() - 1 - i : i;
    std::tie(h, c) = lstm_cell(linear(h, weight, {}, steps[t]), c);
    all[t] = h;
  }
  return {stack(all), c};
}

struct LstmLayer {
  static constexpr OpInfo info{.name = "lstm_layer", .amp = Amp::low};
  static constexpr std::array policies{Amp::low, Amp::low, Amp::low, Amp::promote};
  bool reverse;
  at::ScalarType weight_grad;  // dtype of dW
  // The gates before their activations have the slot of x_gates, which is all that they differ from
  // by h W^T: plain() subtracts it.
  Saved gates = Saved::input(0), weight = Saved::input(1), h = Saved::input(2), c = Saved::input(3);
  Saved hidden = Saved::activation(), cells = Saved::activation();  // [T + 1, B, H], see LstmShape

  // [i f g o] = x_gates_t + h W^T:  c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o)
  // tanh(c')
  std::vector<at::Tensor> forward(const at::Tensor& x_gates_, const at::Tensor& weight_,
                                  const at::Tensor& h_, const at::Tensor& c_) {
    const at::Tensor x = x_gates_.contiguous(), w = weight_.contiguous();
    weight = w;
    const LstmShape shape = shape_of(x);
    const std::vector<int64_t> states{shape.steps + 1, shape.batch, shape.h};
    at::Tensor all = at::empty(x.sizes(), x.options()), hs = at::empty(states, x.options()),
               cs = at::empty(states, x.options().dtype(at::kFloat));

    const int64_t first = reverse ? shape.steps : 0;
    hs.select(0, first).copy_(h_);
    cs.select(0, first).copy_(c_);
    lstm_forward(shape, matrix_of(w), x.const_data_ptr(), all.mutable_data_ptr(),
                 hs.mutable_data_ptr(), cs.mutable_data_ptr<float>());
    for (const at::Tensor& t : {all, hs, cs}) bump_version(t);
    gates = all;
    hidden = hs;
    cells = cs;
    h = hs.select(0, first);
    c = cs.select(0, first);
    return {hs.narrow(0, reverse ? 0 : 1, shape.steps),
            cs.select(0, reverse ? 0 : shape.steps).to(c_.scalar_type())};
  }

  // The gradients of a step are those of lstm_cell. dW = the sum over the steps of dgates^T h
  Grads<4> backward(const GradList<at::Tensor>& dy, Needs<4> needs, GradSlots& slots) const {
    const LstmShape shape = shape_of(gates.data());
    const at::Tensor &w = weight.data(), &hs = hidden.data();
    const at::Tensor up = dy[0].defined() ? dy[0].to(hs.scalar_type()).contiguous() : dy[0],
                     dc = as_float(dy[1]);

    at::Tensor dgates = at::empty_like(gates.data()),
               dh = at::empty({shape.batch, shape.h}, hs.options()),
               dc0 = at::empty({shape.batch, shape.h}, hs.options().dtype(at::kFloat));
    lstm_backward(shape, matrix_of(w), gates.data().const_data_ptr(),
                  cells.data().const_data_ptr<float>(),
                  up.defined() ? up.const_data_ptr() : nullptr, floats_of(dc),
                  dgates.mutable_data_ptr(), dh.mutable_data_ptr(), dc0.mutable_data_ptr<float>());
    for (const at::Tensor& t : {dgates, dh, dc0}) bump_version(t);

    // One product over all steps and sequences.
    LinearGradients layer{dgates, w, weight_grad, 1, needs[1]};
    if (needs[1])
      linear_backward(hs.narrow(0, reverse ? 1 : 0, shape.steps), {&layer, 1}, false, slots);
    return {dgates, layer.dw, dh, dc0};
  }
  Grads<4, Variable> backward(const GradList<Variable>& dy, Needs<4> needs) const {
    const LstmShape shape = shape_of(gates.data());
    const at::Tensor before =
        at_least_float32(hidden.data().narrow(0, reverse ? 1 : 0, shape.steps));
    const Variable from_h(before.matmul(at_least_float32(weight.data()).t()));
    return plain_gradients<4>(
        {gates.as<Variable>(), weight.as<Variable>(), h.as<Variable>(), c.as<Variable>()}, needs,
        dy, [&](const std::vector<Variable>& in) {
          const auto [y, last] = steps_of(wide_of(in[0]) - from_h, wide_of(in[1]), wide_of(in[2]),
                                          wide_of(in[3]), reverse);
          return std::vector{y, last};
        });
  }

  static OpFlops flops(const at::Tensor& x_gates, const at::Tensor& weight, const at::Tensor&,
                       const at::Tensor&, const at::Tensor& y) {
    OpFlops f = flops_each(y, 20, 40);
    const double product =
        2 * static_cast<double>(x_gates.numel()) * static_cast<double>(weight.size(1));
    f.forward.matmul += product;
    f.backward.matmul += 2 * product;
    return f;
  }

 private:
  LstmShape shape_of(const at::Tensor& all_gates) const {
    return {all_gates.size(0), all_gates.size(1), all_gates.size(2) / 4, reverse};
  }
};

/// Returns whether the op takes a layer. With fewer sequences, the products of each step are too
/// small for rows to be divided among threads. One step does not repay packing the weight.
bool is_fused(const Variable& x_gates, const Variable& weight, const Variable& h,
              const Variable& c) {
  const auto dtype = fused_linear_dtype(h, weight);
  return dtype && x_gates.data().is_cpu() && kernel_dtype(*dtype) && kernel_dtype(c.dtype()) &&
         (mode().compute != at::kFloat || x_gates.dtype() == *dtype) && x_gates.size(0) > 1 &&
         x_gates.size(1) >= 16 && weight.size(1) % 2 == 0;
}

}  // namespace

std::pair<Variable, Variable> lstm_layer(const Variable& x_gates, const Variable& weight,
                                         const Variable& h, const Variable& c, bool reverse) {
  require_defined("lstm_layer", {&x_gates, &weight, &h, &c});
  const at::IntArrayRef gates = x_gates.sizes(), state = h.sizes();
  LATHE_CHECK(gates.size() == 3 && gates[0] >= 1 && state.size() == 2 && c.sizes() == state &&
                  state[0] == gates[1] && gates[2] == 4 * state[1] &&
                  weight.sizes() == at::IntArrayRef({gates[2], state[1]}),
              "lstm_layer: needs gates [T, B, 4 H], a weight [4 H, H] and states [B, H], not ",
              describe(x_gates.data()), ", ", describe(weight.data()), ", ", describe(h.data()),
              " and ", describe(c.data()));
  if (!is_fused(x_gates, weight, h, c)) return steps_of(x_gates, weight, h, c, reverse);
  const auto out = apply(LstmLayer{.reverse = reverse, .weight_grad = kernel_grad_dtype(weight)},
                         x_gates, weight, h, c);
  return {out[0], out[1]};
}

}  // namespace lathe
