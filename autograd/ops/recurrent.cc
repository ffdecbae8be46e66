// Implements fused cells of recurrent layers. CPUs use the kernels of core/kernels/recurrent.h;
// float64 and CUDA use ATen's elementwise ops. Shapes: B batch, H units.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "autograd/ops/formula.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/plain.h"
#include "core/dtype.h"
#include "core/kernels/recurrent.h"

namespace lathe {
namespace {

/// Returns part i of n equal parts of the last dim, in float32 or wider.
Variable part_of(const Variable& x, int64_t i, int64_t n) {
  const int64_t h = x.size(1) / n;
  return wide_of(slice(x, 1, i * h, (i + 1) * h));
}
void check_cell(const at::Tensor& gates, int64_t number, const at::Tensor& state) {
  LATHE_CHECK(gates.dim() == 2 && state.dim() == 2 && gates.size(0) == state.size(0) &&
                  gates.size(1) == number * state.size(1),
              "needs gates [B, ", number, " H] and a state [B, H]");
  LATHE_CHECK(gates.is_floating_point() && state.is_floating_point(),
              "needs floating-point gates and a floating-point state");
}

struct LstmCell {
  static constexpr OpInfo info{.name = "lstm_cell"};
  Saved gates = Saved::input(0), c = Saved::input(1), c_out = Saved::activation();

  // [i f g o] = gates:  c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c')
  std::vector<at::Tensor> forward(const at::Tensor& gates_, const at::Tensor& c_) {
    check_cell(gates_, 4, c_);
    gates = gates_.contiguous();
    c = c_.contiguous();

    if (kernel_ready(gates_)) {
      const at::Tensor state = as_float(c_);
      at::Tensor h = at::empty(c_.sizes(), gates_.options()),
                 next = at::empty(c_.sizes(), state.options());
      lstm_cell_forward(gates.data().const_data_ptr(), element_of(gates_.scalar_type()),
                        state.const_data_ptr<float>(), h.mutable_data_ptr(),
                        next.mutable_data_ptr<float>(), c_.size(0), c_.size(1));
      // The kernel writes by pointer, which ATen does not notice.
      bump_version(h);
      bump_version(next);
      // Save the returned state, which is rounded to c's dtype, so that backward reads the values
      // that the next step used.
      next = next.to(c_.scalar_type());
      c_out = next;
      return {h, next};
    }

    const auto g = at_least_float32(gates.data()).chunk(4, 1);
    const at::Tensor next = g[1].sigmoid() * at_least_float32(c_) + g[0].sigmoid() * g[2].tanh();
    const at::Tensor h = (g[3].sigmoid() * next.tanh()).to(gates_.scalar_type()),
                     kept = next.to(c_.scalar_type());
    c_out = kept;
    return {h, kept};
  }
  // t = tanh(c'), s' = s (1 - s) of a gate s, G = dc' + dh s(o) (1 - t^2):
  // di = G tanh(g) s'(i), df = G c s'(f), dg = G s(i) (1 - tanh(g)^2), do = dh t s'(o), dc = G s(f)
  Grads<2> backward(const GradList<at::Tensor>& dy, Needs<2>) const {
    const at::Tensor &in = gates.data(), &state = c.data();

    if (kernel_ready(in)) {
      const at::Tensor before = as_float(state), after = as_float(c_out.data()),
                       later = as_float(dy[1]);

      const at::Tensor up = dy[0].defined() ? dy[0].contiguous() : dy[0];
      at::Tensor dgates = at::empty_like(in), dc = at::empty_like(before);
      lstm_cell_backward(in.const_data_ptr(), element_of(in.scalar_type()),
                         before.const_data_ptr<float>(), after.const_data_ptr<float>(),
                         up.defined() ? up.const_data_ptr() : nullptr, floats_of(later),
                         dgates.mutable_data_ptr(), dc.mutable_data_ptr<float>(), state.size(0),
                         state.size(1));
      bump_version(dgates);
      bump_version(dc);
      return {dgates, dc};
    }

    const auto g = at_least_float32(in).chunk(4, 1);
    const at::Tensor i = g[0].sigmoid(), f = g[1].sigmoid(), n = g[2].tanh(), o = g[3].sigmoid();
    const at::Tensor t = at_least_float32(c_out.data()).tanh(),
                     dh = dy[0].defined() ? at_least_float32(dy[0]) : at::zeros_like(t);

    // The gradient of c': the part that flows through h', plus the part from the next step.
    at::Tensor grad = dh * o * (1 - t * t);
    if (dy[1].defined()) grad = grad + at_least_float32(dy[1]);
    return {at::cat({grad * n * i * (1 - i), grad * at_least_float32(state) * f * (1 - f),
                     grad * i * (1 - n * n), dh * t * o * (1 - o)},
                    1),
            grad * f};
  }
  Grads<2, Variable> backward(const GradList<Variable>& dy, Needs<2> needs) const {
    return plain_gradients<2>(
        {gates.as<Variable>(), c.as<Variable>()}, needs, dy, [](const std::vector<Variable>& in) {
          const auto gate = [&](int64_t i) { return part_of(in[0], i, 4); };
          const Variable next =
              sigmoid(gate(1)) * wide_of(in[1]) + sigmoid(gate(0)) * tanh(gate(2));
          return std::vector{sigmoid(gate(3)) * tanh(next), next};
        });
  }
  static OpFlops flops(const at::Tensor&, const at::Tensor&, const at::Tensor& h) {
    return flops_each(h, 20, 40);
  }
};

struct GruCell {
  static constexpr OpInfo info{.name = "gru_cell", .each = {16, 36}};
  Saved x = Saved::input(0), g = Saved::input(1), h = Saved::input(2);

  // [xr xz xn] = x_gates, [hr hz hn] = h_gates:  r = sigmoid(xr + hr), z = sigmoid(xz + hz), n =
  // tanh(xn + r hn), h' = (1 - z) n + z h
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& g_, const at::Tensor& h_) {
    check_cell(x_, 3, h_);
    check_cell(g_, 3, h_);
    x = x_.contiguous();
    g = g_.contiguous();
    h = h_.contiguous();
    if (fused()) {
      at::Tensor out = at::empty(h_.sizes(), h_.options());
      gru_cell_forward(x.data().const_data_ptr(), g.data().const_data_ptr(),
                       h.data().const_data_ptr(), out.mutable_data_ptr(),
                       element_of(h_.scalar_type()), h_.size(0), h_.size(1));
      bump_version(out);
      return out;
    }
    const auto [r, z, n] = gates();
    return (n + z * (at_least_float32(h_) - n)).to(h_.scalar_type());
  }
  // dn = dh' (1 - z) (1 - n^2), dr = dn hn r (1 - r), dz = dh' (h - n) z (1 - z):
  // dx_gates = [dr dz dn], dh_gates = [dr dz dn r], dh = dh' z
  Grads<3> backward(const at::Tensor& dy_, Needs<3>) const {
    if (fused()) {
      const at::Tensor dy = dy_.contiguous(), &state = h.data();
      at::Tensor dx = at::empty_like(x.data()), dg = at::empty_like(dx), dh = at::empty_like(state);
      gru_cell_backward(x.data().const_data_ptr(), g.data().const_data_ptr(),
                        state.const_data_ptr(), dy.const_data_ptr(), dx.mutable_data_ptr(),
                        dg.mutable_data_ptr(), dh.mutable_data_ptr(),
                        element_of(state.scalar_type()), state.size(0), state.size(1));
      for (const at::Tensor& t : {dx, dg, dh}) bump_version(t);
      return {dx, dg, dh};
    }
    const auto [r, z, n] = gates();
    const at::Tensor dy = at_least_float32(dy_), dn = dy * (1 - z) * (1 - n * n);
    const at::Tensor dr = dn * at_least_float32(g.data()).chunk(3, 1)[2] * r * (1 - r),
                     dz = dy * (at_least_float32(h.data()) - n) * z * (1 - z);
    return {at::cat({dr, dz, dn}, 1), at::cat({dr, dz, dn * r}, 1), dy * z};
  }
  Grads<3, Variable> backward(const Variable& dy, Needs<3> needs) const {
    return plain_gradients<3>({x.as<Variable>(), g.as<Variable>(), h.as<Variable>()}, needs, {dy},
                              [](const std::vector<Variable>& in) {
                                const auto a = [&](int64_t i) { return part_of(in[0], i, 3); };
                                const auto b = [&](int64_t i) { return part_of(in[1], i, 3); };
                                const Variable r = sigmoid(a(0) + b(0)), z = sigmoid(a(1) + b(1)),
                                               n = tanh(a(2) + r * b(2));
                                return std::vector{n + z * (wide_of(in[2]) - n)};
                              });
  }

 private:
  bool fused() const {
    const at::ScalarType dtype = h.data().scalar_type();
    return kernel_ready(h.data()) && x.data().scalar_type() == dtype &&
           g.data().scalar_type() == dtype;
  }
  std::array<at::Tensor, 3> gates() const {
    const auto a = at_least_float32(x.data()).chunk(3, 1),
               b = at_least_float32(g.data()).chunk(3, 1);
    const at::Tensor r = (a[0] + b[0]).sigmoid();
    return {r, (a[1] + b[1]).sigmoid(), (a[2] + r * b[2]).tanh()};
  }
};

}  // namespace

std::pair<Variable, Variable> lstm_cell(const Variable& gates, const Variable& c) {
  const auto out = apply(LstmCell{}, gates, c);
  return {out[0], out[1]};
}
Variable gru_cell(const Variable& x_gates, const Variable& h_gates, const Variable& h) {
  return apply(GruCell{}, x_gates, h_gates, h);
}

}  // namespace lathe
