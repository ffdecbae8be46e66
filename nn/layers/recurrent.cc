#include "nn/layers/recurrent.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "autograd/recompute.h"
#include "core/error.h"
#include "nn/module_call.h"

namespace lathe {
namespace {

/// Stacks steps [B, H] to [T, B, H].
Variable stacked(const std::vector<Variable>& steps_BH) {
  const Variable& first = steps_BH[0];
  return reshape(cat(steps_BH, 0),
                 {static_cast<int64_t>(steps_BH.size()), first.size(0), first.size(1)});
}
Variable swapped(const Variable& x) { return contiguous(transpose(x, 0, 1)); }
Variable in_dtype(const Variable& x, at::ScalarType dtype) {
  return x.dtype() == dtype ? x : cast(x, dtype);
}
at::ScalarType wide_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? dtype : at::kFloat;
}

/// Returns a layer's state before its first step [B, H]: the given state, or zeros.
Variable first_state(const Variable& given_LBH, size_t layer, const Variable& x_TBC, int64_t hidden,
                     at::ScalarType dtype) {
  if (!given_LBH.defined())
    return Variable(at::zeros({x_TBC.size(1), hidden}, x_TBC.data().options().dtype(dtype)));
  return in_dtype(select(given_LBH, 0, static_cast<int64_t>(layer)), dtype);
}

/// Returns a mask for each step, bool [B, 1]: true for the sequences that have ended. The mask is
/// undefined if no sequence has ended.
std::vector<at::Tensor> ended_at(const at::Tensor& lengths, int64_t steps, at::Device device) {
  std::vector<at::Tensor> out(static_cast<size_t>(steps));
  if (!lengths.defined()) return out;
  const int64_t first = lengths.numel() == 0 ? steps : lengths.min().item<int64_t>();
  for (int64_t t = first; t < steps; ++t)
    out[static_cast<size_t>(t)] = lengths.le(t).unsqueeze(1).to(device);
  return out;
}

/// Returns `before` where a sequence has ended, and `now` elsewhere.
Variable kept(const Variable& now, const Variable& before, const at::Tensor& ended) {
  return masked_fill(now, ended, 0) + masked_fill(before, ended.logical_not(), 0);
}

Variable sum_of(const Variable& a, const Variable& b) { return a.defined() ? a + b : Variable(); }

}  // namespace

Recurrent::Recurrent(int64_t gates, int64_t in, int64_t hidden_, const RecurrentOptions& o)
    : drop(o.dropout), hidden(hidden_), bidirectional(o.bidirectional) {
  LATHE_CHECK(o.n_layer >= 1, "a recurrent module needs at least 1 layer, not ", o.n_layer);
  const int64_t directions = bidirectional ? 2 : 1;
  for (int64_t l = 0; l < o.n_layer * directions; ++l) {
    layers.push_back(
        {.weight_ih = new_parameter({gates * hidden, l < directions ? in : directions * hidden}),
         .weight_hh = new_parameter({gates * hidden, hidden}),
         .bias_ih = o.bias ? new_parameter({gates * hidden}) : Variable(),
         .bias_hh = o.bias ? new_parameter({gates * hidden}) : Variable()});
  }
}

void Recurrent::visit(Visit& v) {
  const size_t directions = bidirectional ? 2 : 1;
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::string place =
        "_l" + std::to_string(l / directions) + (l % directions == 1 ? "_reverse" : "");
    v("weight_ih" + place, layers[l].weight_ih, Role::weight);
    v("weight_hh" + place, layers[l].weight_hh, Role::weight);
    v("bias_ih" + place, layers[l].bias_ih, Role::bias);
    v("bias_hh" + place, layers[l].bias_hh, Role::bias);
  }
  v("dropout", drop);
}

template <class Module, class Project, class Cell, class AllSteps>
Recurrent::Sequence Recurrent::run(const Module& module, const Variable& x_BTC,
                                   const Variable& h_LBH, const Variable& c_LBH,
                                   const at::Tensor& lengths, bool with_c, Project project,
                                   Cell cell, AllSteps all_steps) const {
  LATHE_CHECK(
      !layers.empty(),
      "the recurrent module that is called was not constructed with sizes; before the call, "
      "assign a module with sizes to it");
  const size_t directions = bidirectional ? 2 : 1, depth = layers.size() / directions;

  ModuleCall call(module, {{'C', layers[0].weight_ih.size(1)},
                           {'L', static_cast<int64_t>(layers.size())},
                           {'H', hidden},
                           {'O', hidden * static_cast<int64_t>(directions)}});
  call.input(x_BTC, "B T C");
  call.input("state h", h_LBH, "L B H");
  call.input("state c", c_LBH, "L B H");
  call.input("lengths", lengths, "B");

  const int64_t steps = call.size('T');
  LATHE_CHECK(steps >= 1, call.text(), ": the sequences have no steps; give at least one");
  LATHE_CHECK(!lengths.defined() || lengths.numel() == 0 ||
                  (lengths.scalar_type() == at::kLong && lengths.is_cpu() &&
                   lengths.ge(1).all().item<bool>() && lengths.le(steps).all().item<bool>()),
              call.text(), ": lengths must be int64 on the CPU, from 1 to ", steps);
  const auto ended = ended_at(lengths, steps, x_BTC.data().device());

  const at::ScalarType wide = wide_dtype(x_BTC.dtype());
  const auto run_layer = [=, this](size_t layer, Sequence s) {
    std::vector<Variable> sides;
    for (size_t d = 0; d < directions; ++d) {
      const size_t at = layer * directions + d;
      const Layer& w = layers[at];

      Variable c = with_c ? first_state(c_LBH, at, s.x_TBC, hidden, wide) : Variable();
      if constexpr (!std::is_null_pointer_v<AllSteps>) {
        if (!lengths.defined()) {
          const bool reverse = d == 1;
          const Variable h = first_state(h_LBH, at, s.x_TBC, hidden, s.x_TBC.dtype());
          auto [all_h, last_c] = all_steps(w, s.x_TBC, h, c, reverse);
          s.h.push_back(select(all_h, 0, reverse ? 0 : steps - 1));
          s.c.push_back(last_c);
          sides.push_back(std::move(all_h));
          continue;
        }
      }

      // The projection of the inputs does not depend on the state, so one matrix product serves all
      // steps.
      const std::vector<Variable> projected = unbind(project(w, s.x_TBC));
      Variable h = first_state(h_LBH, at, s.x_TBC, hidden, projected[0].dtype());
      std::vector<Variable> made(projected.size());
      for (size_t i = 0; i < made.size(); ++i) {
        const size_t t = d == 0 ? i : made.size() - 1 - i;
        auto [next_h, next_c] = cell(w, projected[t], h, c);
        made[t] = next_h;
        // A sequence that has ended gives zeros and keeps its state. In the reverse direction the
        // sequence thus starts at its own last step.
        if (ended[t].defined()) {
          made[t] = masked_fill(next_h, ended[t], 0);
          next_h = kept(next_h, h, ended[t]);
          if (next_c.defined()) next_c = kept(next_c, c, ended[t]);
        }

        h = next_h;
        c = next_c;
      }
      s.h.push_back(h);
      s.c.push_back(c);
      sides.push_back(stacked(made));
    }

    s.x_TBC = directions == 1 ? sides[0] : cat(sides, 2);
    if (layer + 1 < depth && drop.active())
      s.x_TBC = swapped(drop(swapped(s.x_TBC)));  // dropout takes dim 0 as the batch
    return s;
  };

  // Each layer is a block for recomputation, which may drop the layer's activations.
  Sequence s = run_blocks(depth, Sequence{.x_TBC = swapped(x_BTC), .h = {}, .c = {}}, run_layer);
  s.x_TBC = call.result(swapped(s.x_TBC), "B T O");
  return s;
}

std::pair<Variable, LSTMState> LSTM::operator()(const Variable& x_BTC, const LSTMState& before,
                                                const at::Tensor& lengths) const {
  const Sequence s = run(
      *this, x_BTC, before.h, before.c, lengths, /*with_c=*/true,
      [](const Layer& w, const Variable& x_TBC) {
        return linear(x_TBC, w.weight_ih, sum_of(w.bias_ih, w.bias_hh));
      },
      [](const Layer& w, const Variable& step, const Variable& h, const Variable& c) {
        return lstm_cell(linear(h, w.weight_hh, {}, step), c);
      },
      [](const Layer& w, const Variable& x_TBC, const Variable& h, const Variable& c,
         bool reverse) {
        return lstm_layer(x_TBC, w.weight_ih, sum_of(w.bias_ih, w.bias_hh), w.weight_hh, h, c,
                          reverse);
      });
  return {s.x_TBC, {stacked(s.h), stacked(s.c)}};
}

std::pair<Variable, Variable> GRU::operator()(const Variable& x_BTC, const Variable& h_LBH,
                                              const at::Tensor& lengths) const {
  const Sequence s = run(
      *this, x_BTC, h_LBH, {}, lengths, /*with_c=*/false,
      [](const Layer& w, const Variable& x_TBC) { return linear(x_TBC, w.weight_ih, w.bias_ih); },
      [](const Layer& w, const Variable& step, const Variable& h, const Variable&) {
        return std::pair(gru_cell(step, linear(h, w.weight_hh, w.bias_hh), h), Variable());
      });
  return {s.x_TBC, stacked(s.h)};
}

SimpleRNN::SimpleRNN(int64_t in, int64_t hidden_, const RecurrentOptions& options,
                     const std::string& activation_)
    : Recurrent(1, in, hidden_, options), activation(activation_) {
  LATHE_CHECK(activation == "tanh" || activation == "relu", "SimpleRNN: no activation is called ",
              activation, "; it supports tanh and relu");
}

std::pair<Variable, Variable> SimpleRNN::operator()(const Variable& x_BTC, const Variable& h_LBH,
                                                    const at::Tensor& lengths) const {
  const Sequence s = run(
      *this, x_BTC, h_LBH, {}, lengths, /*with_c=*/false,
      [](const Layer& w, const Variable& x_TBC) {
        return linear(x_TBC, w.weight_ih, sum_of(w.bias_ih, w.bias_hh));
      },
      [this](const Layer& w, const Variable& step, const Variable& h, const Variable&) {
        const Variable sum = linear(h, w.weight_hh, {}, step);
        return std::pair(activation == "tanh" ? tanh(sum) : relu(sum), Variable());
      });
  return {s.x_TBC, stacked(s.h)};
}

}  // namespace lathe
