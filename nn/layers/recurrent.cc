#include "nn/layers/recurrent.h"

#include <ATen/ops/zeros.h>

#include <string>

#include "core/error.h"

namespace lathe {
namespace {

/// Steps [B, H] in order as [T, B, H].
Variable stacked(const std::vector<Variable>& steps_BH) {
  const Variable& first = steps_BH[0];
  return reshape(cat(steps_BH, 0), {static_cast<int64_t>(steps_BH.size()), first.size(0), first.size(1)});
}
Variable swapped(const Variable& x) { return contiguous(transpose(x, 0, 1)); }
Variable in_dtype(const Variable& x, at::ScalarType dtype) { return x.dtype() == dtype ? x : cast(x, dtype); }
at::ScalarType wide_dtype(at::ScalarType dtype) { return dtype == at::kDouble ? dtype : at::kFloat; }

}  // namespace

Recurrent::Recurrent(int64_t gates, int64_t in, int64_t hidden_, int64_t n_layer, bool bias, double dropout)
    : drop(dropout), hidden(hidden_) {
  LATHE_CHECK(n_layer >= 1, "a recurrent module needs 1 layer at least, not ", n_layer);
  for (int64_t l = 0; l < n_layer; ++l) {
    layers.push_back({.weight_ih = new_parameter({gates * hidden, l == 0 ? in : hidden}),
                      .weight_hh = new_parameter({gates * hidden, hidden}),
                      .bias_ih = bias ? new_parameter({gates * hidden}) : Variable(),
                      .bias_hh = bias ? new_parameter({gates * hidden}) : Variable()});
  }
}

void Recurrent::visit(Visit& v) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::string place = "_l" + std::to_string(l);
    v("weight_ih" + place, layers[l].weight_ih, Role::weight);
    v("weight_hh" + place, layers[l].weight_hh, Role::weight);
    v("bias_ih" + place, layers[l].bias_ih, Role::bias);
    v("bias_hh" + place, layers[l].bias_hh, Role::bias);
  }
  v("dropout", drop);
}

Variable Recurrent::time_first(const Variable& x_BTC) const {
  check_shape("LSTM or GRU", x_BTC.data(), "B T C", {{'C', layers[0].weight_ih.size(1)}});
  LATHE_CHECK(x_BTC.size(1) >= 1, "LSTM or GRU: a sequence of no steps");
  return swapped(x_BTC);
}

Variable Recurrent::next_input(const Variable& y_TBH, size_t layer) const {
  if (layer + 1 == layers.size() || !drop.active()) return y_TBH;
  return swapped(drop(swapped(y_TBH)));  // dropout wants the batch first
}

std::vector<Variable> Recurrent::split_state(const char* name, const Variable& given, const Variable& x_BTC,
                                             at::ScalarType dtype) const {
  const auto l = static_cast<int64_t>(layers.size());
  const int64_t b = x_BTC.size(0);
  if (!given.defined())
    return std::vector<Variable>(layers.size(), Variable(at::zeros({b, hidden}, x_BTC.data().options().dtype(dtype))));
  check_shape(name, given.data(), "L B H", {{'L', l}, {'B', b}, {'H', hidden}});
  return unbind(in_dtype(given, dtype));
}

std::pair<Variable, LSTMState> LSTM::operator()(const Variable& x_BTC, const LSTMState& before) const {
  Variable x_TBC = time_first(x_BTC);
  std::vector<Variable> h, c;  // of each layer
  for (size_t l = 0; l < layers.size(); ++l) {
    const Layer& w = layers[l];
    const Variable bias = w.bias_ih.defined() ? w.bias_ih + w.bias_hh : Variable();
    const auto steps = unbind(linear(x_TBC, w.weight_ih, bias));
    if (l == 0) {
      h = split_state("the LSTM's state h", before.h, x_BTC, steps[0].dtype());
      c = split_state("the LSTM's state c", before.c, x_BTC, wide_dtype(x_BTC.dtype()));
    }
    std::vector<Variable> made;
    for (const Variable& step : steps) {
      std::tie(h[l], c[l]) = lstm_cell(linear(h[l], w.weight_hh, {}, step), c[l]);
      made.push_back(h[l]);
    }
    x_TBC = next_input(stacked(made), l);
  }
  return {swapped(x_TBC), {stacked(h), stacked(c)}};
}

std::pair<Variable, Variable> GRU::operator()(const Variable& x_BTC, const Variable& h_LBH) const {
  Variable x_TBC = time_first(x_BTC);
  std::vector<Variable> h;
  for (size_t l = 0; l < layers.size(); ++l) {
    const Layer& w = layers[l];
    const auto steps = unbind(linear(x_TBC, w.weight_ih, w.bias_ih));
    if (l == 0) h = split_state("the GRU's state h", h_LBH, x_BTC, steps[0].dtype());
    std::vector<Variable> made;
    for (const Variable& step : steps)
      made.push_back(h[l] = gru_cell(step, linear(h[l], w.weight_hh, w.bias_hh), h[l]));
    x_TBC = next_input(stacked(made), l);
  }
  return {swapped(x_TBC), stacked(h)};
}

}  // namespace lathe
